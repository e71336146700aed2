"""Gradients of elementwise functions of one tensor, and of casts.

A rounding function has a gradient of zeros, not none, as in torch: a model that rounds can be
differentiated.
"""

import math
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient, onto
from meta.ir.types import TensorType


@gradient(op.sqrt)
def sqrt(y, dy):
    """dx = dy / (2 * y)"""
    return op.sqrt_dx(None, y, dy)


def second_gradients(x, y, dy, dy_, derivative):
    """Return those by x and y of f_dx = dy * f', where f' is computed from y if given, else x.

    ``derivative`` is that of f' by what it was computed from.
    """
    argument = x if y is None else y
    through = collapse(dy * dy_ * derivative, argument)
    if y is None:
        return through, None
    return None if x is None else op.zeros_like(x), through


@gradient(op.sqrt_dx)
def sqrt_dx(x, y, dy, dy_):
    """By y: f' = 1 / (2 * y), so -1 / (2 * y**2). By x: -1 / (4 * x * sqrt(x))."""
    root = op.sqrt(x) if y is None else y
    derivative = -0.5 / (root * root)
    if y is None:
        derivative = op.sqrt_dx(None, root, derivative)
    return *second_gradients(x, y, dy, dy_, derivative), collapse(op.sqrt_dx(None, root, dy_), dy)


@gradient(op.exp)
def exp(y, dy):
    """dx = dy * y"""
    return dy * y


@gradient(op.log)
def log(x, dy):
    """dx = dy / x"""
    return dy / x


@gradient(op.rsqrt)
def rsqrt(y, dy):
    """dx = -dy / 2 * x**(-3/2) = -dy / 2 * y**3"""
    return dy * -0.5 * (y * y * y)


@gradient(op.copy)
def copy(dy):
    """dx = dy"""
    return dy


@gradient(op.log2)
def log2(x, dy):
    """dx = dy / (x * log(2))"""
    return dy / (x * math.log(2))


@gradient(op.log10)
def log10(x, dy):
    """dx = dy / (x * log(10))"""
    return dy / (x * math.log(10))


@gradient(op.log1p)
def log1p(x, dy):
    """dx = dy / (1 + x)"""
    return dy / (x + 1.0)


@gradient(op.expm1)
def expm1(y, dy):
    """dx = dy * (y + 1)"""
    return dy * (y + 1.0)


@gradient(op.reciprocal)
def reciprocal(y, dy):
    """dx = -dy * y**2"""
    return -(dy * (y * y))


@gradient(op.ceil)
def ceil(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.floor)
def floor(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.round)
def round(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.trunc)
def trunc(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.sign)
def sign(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.frac)
def frac(dy):
    """dx = dy, the jumps left out"""
    return dy


@gradient(op.sin)
def sin(x, dy):
    """dx = dy * cos(x)"""
    return dy * op.cos(x)


@gradient(op.cos)
def cos(x, dy):
    """dx = -dy * sin(x)"""
    return -(dy * op.sin(x))


@gradient(op.tan)
def tan(y, dy):
    """dx = dy * (1 + y**2)"""
    return dy * (y * y + 1.0)


@gradient(op.asin)
def asin(x, dy):
    """dx = dy / sqrt(1 - x**2)"""
    return dy * op.rsqrt(1.0 - x * x)


@gradient(op.acos)
def acos(x, dy):
    """dx = -dy / sqrt(1 - x**2)"""
    return -(dy * op.rsqrt(1.0 - x * x))


@gradient(op.atan)
def atan(x, dy):
    """dx = dy / (1 + x**2)"""
    return dy / (x * x + 1.0)


@gradient(op.sinh)
def sinh(x, dy):
    """dx = dy * cosh(x)"""
    return dy * op.cosh(x)


@gradient(op.cosh)
def cosh(x, dy):
    """dx = dy * sinh(x)"""
    return dy * op.sinh(x)


@gradient(op.asinh)
def asinh(x, dy):
    """dx = dy / sqrt(x**2 + 1)"""
    return dy * op.rsqrt(x * x + 1.0)


@gradient(op.acosh)
def acosh(x, dy):
    """dx = dy / sqrt(x**2 - 1)"""
    return dy * op.rsqrt(x * x - 1.0)


@gradient(op.atanh)
def atanh(x, dy):
    """dx = dy / (1 - x**2)"""
    return dy / (1.0 - x * x)


@gradient(op.atan2)
def atan2(x1, x2, dy):
    """dx1 = dy * x2 / r, dx2 = -dy * x1 / r with r = x1**2 + x2**2; 0 at the origin, as torch."""
    square = x1 * x1 + x2 * x2
    scaled = op.where(op.equal(square, 0), 0, dy / square)

    dx1 = onto(x1, lambda: scaled * x2)
    return dx1, onto(x2, lambda: -(scaled * x1))


@gradient(op.deg2rad)
def deg2rad(dy):
    """dx = dy * pi / 180"""
    return dy * (math.pi / 180)


@gradient(op.rad2deg)
def rad2deg(dy):
    """dx = dy * 180 / pi"""
    return dy * (180 / math.pi)


@gradient(op.exp2)
def exp2(y, dy):
    """dx = dy * y * log(2)"""
    return dy * (y * math.log(2))


@gradient(op.square)
def square(x, dy):
    """dx = dy * 2 * x"""
    return onto(x, lambda: dy * (x * 2))


@gradient(op.nan_to_num)
def nan_to_num(x, dy):
    """dx = dy where x is finite, else 0"""
    return onto(x, lambda: op.where(op.isfinite(x), dy, 0))


@gradient(op.cast)
def cast(data: TensorType, dy: Any) -> Any:
    """dx = dy in the dtype of x; integers, bool and float8 have no gradient."""
    return op.cast(dy, data.dtype) if is_float(data.dtype) else None


@gradient(op.cast_like)
def cast_like(x: TensorType, like_type: Any, dy: Any) -> Any:
    """dx = dy in the dtype of x; integers and bool have no gradient."""
    dx = op.cast(dy, x.dtype) if is_float(x.dtype) else None
    return dx, op.zeros_like(like_type) if is_float(like_type.dtype) else None


@gradient(op.group_cast)
def group_cast(tensor_list: TensorType, dy: Any) -> Any:
    """Each gradient in the dtype of its tensor; integers and bool have none."""
    dys = dy if isinstance(dy, tuple) else (dy,)
    return tuple(
        op.cast(d, t.dtype) if is_float(t.dtype) else None
        for t, d in zip(tensor_list, dys, strict=True)
    )
