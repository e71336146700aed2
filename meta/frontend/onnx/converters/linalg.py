"""Converters of matrix products and what else is linear algebra."""

from __future__ import annotations

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.converters.elementwise import aligned
from meta.frontend.onnx.registry import onnx


@onnx("MatMul", op.matmul)
def matmul(a, b):
    return op.matmul(a, b)


@onnx("Gemm", op.matmul, op.multiply, op.add)
def gemm(a, b, c=None, *, alpha, beta, transA, transB, broadcast, call):
    """alpha * a @ b + beta * c."""
    a = op.permute_dims(a, (1, 0)) if transA else a
    b = op.permute_dims(b, (1, 0)) if transB else b
    y = _scaled(op.matmul(a, b), alpha)
    if c is None:
        return y
    if call.opset < 7:
        c = aligned(y, c, y.ndim - c.ndim, broadcast, call)
    return op.add(y, _scaled(c, beta))


def _scaled(x, factor):
    if factor == 1.0:
        return x
    if is_float(x.dtype) or factor == int(factor):
        return op.multiply(x, factor if is_float(x.dtype) else int(factor))
    return cast_to(op.multiply(cast_to(x, "float64"), factor), x.dtype)


@onnx("Einsum", op.einsum)
def einsum(*operands, equation):
    return op.einsum(equation.replace(" ", ""), *operands)


@onnx("Det", op.linalg_det)
def det(x):
    return op.linalg_det(x)
