"""Gradients of elementwise functions of one tensor, and of casts.

A rounding function has a gradient of zeros, not none, as in torch: a model that rounds can be
differentiated.
"""

import math
from typing import Any

from meta import op
from meta.base.dtype import COMPLEX, has_gradient, is_float
from meta.grad.core import collapse, gradient, gradients, holomorphic, not_differentiable, onto
from meta.ir.types import TensorType

HOLOMORPHIC = {
    op.sqrt: lambda y, dy: op.sqrt_dx(None, y, dy),
    op.exp: lambda y, dy: dy * y,
    op.log: lambda x, dy: dy / x,
    op.rsqrt: lambda y, dy: dy * -0.5 * (y * y * y),
    op.log2: lambda x, dy: dy / (x * math.log(2)),
    op.log10: lambda x, dy: dy / (x * math.log(10)),
    op.log1p: lambda x, dy: dy / (x + 1.0),
    op.expm1: lambda y, dy: dy * (y + 1.0),
    op.reciprocal: lambda y, dy: -(dy * (y * y)),
    op.sin: lambda x, dy: dy * op.cos(x),
    op.cos: lambda x, dy: -(dy * op.sin(x)),
    op.tan: lambda y, dy: dy * (y * y + 1.0),
    op.asin: lambda x, dy: dy * op.rsqrt(1.0 - x * x),
    op.acos: lambda x, dy: -(dy * op.rsqrt(1.0 - x * x)),
    op.atan: lambda x, dy: dy / (x * x + 1.0),
    op.sinh: lambda x, dy: dy * op.cosh(x),
    op.cosh: lambda x, dy: dy * op.sinh(x),
    op.asinh: lambda x, dy: dy * op.rsqrt(x * x + 1.0),
    op.acosh: lambda x, dy: dy * (op.rsqrt(x - 1.0) * op.rsqrt(x + 1.0)),
    op.atanh: lambda x, dy: dy / (1.0 - x * x),
    op.exp2: lambda y, dy: dy * (y * math.log(2)),
    op.square: lambda x, dy: onto(x, lambda: dy * (x * 2)),
}
"""Also of complex numbers."""
gradients({function: holomorphic(rule) for function, rule in HOLOMORPHIC.items()})
gradients(
    {
        op.copy: lambda dy: dy,
        op.frac: lambda dy: dy,
        op.deg2rad: lambda dy: dy * (math.pi / 180),
        op.rad2deg: lambda dy: dy * (180 / math.pi),
        op.nan_to_num: lambda x, dy: onto(x, lambda: op.where(op.isfinite(x), dy, 0)),
    }
)


not_differentiable(op.detach, why="that is what it is for")


@gradient(op.ceil, op.floor, op.round, op.trunc)
def steps(dy):
    return op.zeros_like(dy)


@gradient(op.sign)
def sign(x, y, dy):
    """0; of complex numbers g - y * Re(conj(y) g) with g = dy / |x|, 0 at 0."""
    if x.dtype not in COMPLEX:
        return op.zeros_like(dy)
    size = op.astype(op.abs(x), x.dtype)
    scaled = op.where(op.equal(size, 0), 0, dy / size)
    return scaled - y * op.astype(op.real(op.conj(y) * scaled), x.dtype)


def by_result(forward, backward, slope):
    """Register the gradient of ``backward(x, y, dy) = dy * f'``, f' being a function of y.

    ``slope``: its derivative by y. It is computed from y if that is given; then y carries the
    derivative, and that of x is zero.
    """

    @gradient(backward)
    @holomorphic
    def by_all(x, y, dy, dy_):
        result = forward(x) if y is None else y
        derivative = slope(result)
        if y is None:
            derivative = backward(None, result, derivative)
        through = collapse(dy * dy_ * derivative, result)
        linear = collapse(backward(None, result, dy_), dy)
        if y is None:
            return through, None, linear
        return None if x is None else op.zeros_like(x), through, linear


by_result(op.sqrt, op.sqrt_dx, lambda y: -0.5 / (y * y))


@gradient(op.atan2)
def atan2(x1, x2, dy):
    """dx1 = dy * x2 / r, dx2 = -dy * x1 / r with r = x1**2 + x2**2; 0 at the origin, as torch."""
    square = x1 * x1 + x2 * x2
    scaled = op.where(op.equal(square, 0), 0, dy / square)
    return onto(x1, lambda: scaled * x2), onto(x2, lambda: -(scaled * x1))


def _in_dtype_of(dy: Any, x: TensorType) -> Any:
    """Return dy in the dtype of x; integers, bool and float8 have no gradient. Of a complex dy, the
    real part is that of real numbers.
    """
    if not has_gradient(x.dtype):
        return None
    part = op.real(dy) if is_float(x.dtype) and dy.dtype in COMPLEX else dy
    return op.astype(part, x.dtype)


@gradient(op.astype)
def astype(x: TensorType, dy: Any) -> Any:
    return _in_dtype_of(dy, x)


@gradient(op.cast_like)
def cast_like(x: TensorType, like_type: Any, dy: Any) -> Any:
    dx = _in_dtype_of(dy, x)
    return dx, op.zeros_like(like_type) if has_gradient(like_type.dtype) else None


@gradient(op.group_cast)
def group_cast(tensor_list: tuple[TensorType, ...], dy: Any) -> Any:
    dys = dy if isinstance(dy, tuple) else (dy,)
    return tuple(_in_dtype_of(d, t) for t, d in zip(tensor_list, dys, strict=True))
