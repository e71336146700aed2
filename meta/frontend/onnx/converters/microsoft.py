"""Converters of operators of the domain com.microsoft that exporters and optimizers write."""

from __future__ import annotations

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.registry import onnx

DOMAIN = "com.microsoft"


@onnx(f"{DOMAIN}.Gelu", op.gelu)
def gelu(x):
    return op.gelu(x)


@onnx(f"{DOMAIN}.BiasGelu", op.gelu, op.add)
def bias_gelu(x, bias):
    return op.gelu(op.add(x, bias))


@onnx(f"{DOMAIN}.FastGelu", op.gelu, op.add)
def fast_gelu(x, bias=None):
    return op.gelu(x if bias is None else op.add(x, bias), "tanh")


@onnx(f"{DOMAIN}.QuickGelu", op.sigmoid, op.multiply)
def quick_gelu(x, *, alpha):
    return op.multiply(x, op.sigmoid(op.multiply(x, 1.702 if alpha is None else alpha)))


@onnx(f"{DOMAIN}.FusedMatMul", op.matmul, op.multiply)
def fused_matmul(a, b, *, alpha, transA, transB, transBatchA, transBatchB):
    """alpha * a @ b, of matrices that are transposed first."""
    if transBatchA or transBatchB:
        raise Unconvertible("the batch axis as an axis of the matrices is not supported")
    a = op.swapaxes(a, -1, -2) if transA else a
    b = op.swapaxes(b, -1, -2) if transB else b
    y = op.matmul(a, b)
    return y if alpha in (None, 1.0) else op.multiply(y, alpha)


@onnx(f"{DOMAIN}.SkipLayerNormalization", op.layer_norm, op.add)
def skip_layer_normalization(x, skip, scale, shift=None, bias=None, *, epsilon, call):
    """(the normalised sum, -, -, the sum)."""
    total = _sum(x, skip, bias)
    y = op.layer_norm.plain(total, scale, shift, -1, 1e-12 if epsilon is None else epsilon)
    return _with_sum(y, total, call)


@onnx(f"{DOMAIN}.SkipSimplifiedLayerNormalization", op.rms_norm, op.add)
def skip_simplified_layer_normalization(x, skip, scale, bias=None, *, epsilon, call):
    """As SkipLayerNormalization, by the root of the mean square."""
    total = _sum(x, skip, bias)
    y = op.rms_norm.plain(total, scale, None, -1, 1e-12 if epsilon is None else epsilon)
    return _with_sum(y, total, call)


def _sum(x, skip, bias):
    total = op.add(x, skip)
    return total if bias is None else op.add(total, bias)


def _with_sum(y, total, call):
    """The statistics are for training and have no converter; exporters leave them out."""
    if call.results in (2, 3):
        raise Unconvertible("the mean and the standard deviation are not supported as results")
    return (y, None, None, total) if call.results == 4 else y
