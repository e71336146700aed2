"""ONNX models become models. The package onnx is imported with this one.

`model.py` reads and checks a file, `program.py` takes the model apart, `walker.py` calls the
converters in `converters/` for every node (`registry.py` says how these are written). No other
importer takes part.
"""

from meta.frontend.onnx.model import OnnxModel, from_onnx
from meta.frontend.onnx.registry import OnnxError

__all__ = ["OnnxError", "OnnxModel", "from_onnx"]
