"""ONNX models become models, by TVM's importer. onnx and TVM are imported with this package."""

from meta.frontend.onnx.model import OnnxModel, from_onnx

__all__ = ["OnnxModel", "from_onnx"]
