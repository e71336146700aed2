"""Gradients of scans, in the order of the operators. All are scans again, in the other direction.

Nothing is divided by, so zeros need no care, and every gradient is differentiable in turn."""

from typing import Any

from meta import op
from meta.base.dtype import has_gradient
from meta.grad.core import gradient, holomorphic, in_dtype
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.scan import scan_dtype


def shift(x: Any, axis: int, by: int) -> Any:
    """Return x[i + by] along an axis, 0 where there is none; ``by`` is 1 or -1."""
    at = normalize_axis(axis, x.ndim)
    extents = tuple(x.shape)
    if extents[at] == 0:
        return x
    low, high = ((0,) * at + (i,) for i in (0, 1))
    short, full = (*extents[:at], extents[at] - 1), extents[: at + 1]
    if by == 1:
        return op.strided_slice_dx(op.strided_slice(x, high, full), extents, low, short)
    return op.strided_slice_dx(op.strided_slice(x, low, short), extents, high, full)


@gradient(op.cumsum)
def cumsum(x: TensorType, axis: int, dtype: str | None, exclusive: bool, dy: Any) -> Any:
    """dx[i] = the sum of dy[k] over k >= i (> i if exclusive)."""
    dtype = scan_dtype(x.dtype, dtype)
    if not has_gradient(dtype):
        return None
    back = op.cumsum.plain(op.flip(dy, axis), axis, dtype, exclusive)
    return in_dtype(op.flip(back, axis), x.dtype)


@gradient(op.cumprod)
@holomorphic
def cumprod(x: Any, axis: int, dtype: str | None, exclusive: bool, dy: Any) -> Any:
    """dx[i] = (product of x before i) * s[i] with s[i] = dy[i] + x[i + 1] * s[i + 1].

    If exclusive, s[i] = dy[i + 1] + x[i + 1] * s[i + 1].
    """
    dtype = scan_dtype(x.dtype, dtype)
    if not has_gradient(dtype):
        return None
    wide = in_dtype(x, dtype)
    before = op.cumprod.plain(wide, axis, dtype, True)
    source = shift(dy, axis, 1) if exclusive else dy
    s = op.linear_scan(shift(wide, axis, 1), source, axis, True)
    return in_dtype(before * s, x.dtype)


@gradient(op.linear_scan)
@holomorphic
def linear_scan(a: Any, axis: int, reverse: bool, y: Any, dy: Any) -> Any:
    """db[i] = dy[i] + a[i + 1] * db[i + 1]; da[i] = db[i] * y[i - 1]. Reversed, + is -."""
    ahead = -1 if reverse else 1
    db = op.linear_scan(shift(a, axis, ahead), dy, axis, not reverse)
    return db * shift(y, axis, -ahead), db
