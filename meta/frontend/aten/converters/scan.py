"""Running results along an axis: sums, products, extremes, and differences of neighbours."""

import math

from meta import op
from meta.frontend.aten.converters.reduce import summed
from meta.frontend.aten.operands import require_real
from meta.frontend.aten.promotion import cast, promote
from meta.frontend.aten.registry import aten
from meta.frontend.core.arguments import SLICE_END, static_extent
from meta.ir.dims import UnknownDim
from meta.op.core.check import normalize_axis
from meta.op.loss_reduction import in_compute_dtype


def part(x, axis, begin, end):
    """Return the slice from ``begin`` to ``end`` (None: the rest) along an axis."""
    at = normalize_axis(axis, x.ndim)
    ends = [SLICE_END if isinstance(d, UnknownDim) else d for d in x.shape[: at + 1]]
    ends[at] = ends[at] if end is None else end
    return op.strided_slice(x, (*(0,) * at, begin), tuple(ends), None)


def accumulated(base, x, axis, dtype):
    """Return running sums or products; of a 0-d tensor the element."""
    x = summed(x, dtype)
    return base.plain(x, axis, x.dtype, False) if x.ndim else x


@aten("cumsum", op.cumsum)
def cumsum(x, *, dim, dtype):
    return accumulated(op.cumsum, x, dim, dtype)


@aten("cumprod", op.cumprod)
def cumprod(x, *, dim, dtype):
    return accumulated(op.cumprod, x, dim, dtype)


# An associative function of neighbours is accumulated in log2(n) steps: after each an element has
# the result of twice as many before it.


def shifts(x, axis):
    """Return 1, 2, 4, ... below the extent of an axis."""
    extent = static_extent(x.shape[axis], "an axis that is accumulated along")
    return [2**k for k in range(math.ceil(math.log2(extent)))] if extent > 1 else []


def running_extreme(not_less):
    """Return the converter of the largest or smallest so far, and where it was last; a NaN is both
    from then on.
    """

    def later(earlier, now):
        """Whether the extreme of two neighbours is the later one."""
        wins = not_less(now, earlier)
        if "float" not in now.dtype:
            return wins
        kept = op.logical_and(op.logical_not(op.isnan(earlier)), wins)
        return op.logical_or(op.isnan(now), kept)

    def converted(x, *, dim):
        require_real(x)
        if x.ndim == 0:
            return x, op.zeros_like(x, "int64")
        axis = normalize_axis(dim, x.ndim)
        numbers = op.cumsum.plain(op.ones_like(x, "int64"), axis, "int64", True)
        values, places = x, numbers
        for shift in shifts(x, axis):
            first = [part(t, axis, 0, shift) for t in (values, places)]
            before = [part(t, axis, 0, x.shape[axis] - shift) for t in (values, places)]
            now = [part(t, axis, shift, None) for t in (values, places)]
            chosen = later(before[0], now[0])
            both = (op.where(chosen, n, b) for n, b in zip(now, before, strict=True))
            values, places = (op.concat((f, t), axis) for f, t in zip(first, both, strict=True))
        return op.take_along_axis(x, places, axis), places

    return converted


RUNNING = (op.where, op.concat, op.strided_slice, op.take_along_axis)
aten("cummax", op.greater_equal, *RUNNING)(running_extreme(op.greater_equal))
aten("cummin", op.less_equal, *RUNNING)(running_extreme(op.less_equal))


@aten("logcumsumexp", "_logcumsumexp", op.logaddexp, op.concat, op.strided_slice)
def logcumsumexp(x, *, dim):
    require_real(x)
    (x,) = promote(x, floating=True)
    if x.ndim == 0:
        return x
    axis, y = normalize_axis(dim, x.ndim), in_compute_dtype(x)
    for shift in shifts(x, axis):
        before = part(y, axis, 0, x.shape[axis] - shift)
        both = op.logaddexp(before, part(y, axis, shift, None))
        y = op.concat((part(y, axis, 0, shift), both), axis)
    return cast(y, x.dtype)


@aten("diff", op.subtract, op.not_equal, op.concat, op.strided_slice)
def diff(x, before=None, after=None, *, n, dim):
    parts = [t for t in (before, x, after) if t is not None]
    x = op.concat(tuple(promote(*parts)), dim) if len(parts) > 1 else x
    for _ in range(min(n, static_extent(x.shape[dim], "an axis of differences"))):
        high, low = part(x, dim, 1, None), part(x, dim, 0, x.shape[dim] - 1)
        x = op.not_equal(high, low) if x.dtype == "bool" else op.subtract(high, low)
    return x
