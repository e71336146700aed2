"""ONNX files that packages on PyPI ship, through `meta.frontend.from_onnx`, beside onnxruntime.
``python -m tools.onnx_files --help``.
"""
