"""Pooling as torch calls it: windows that step by their own size, one example without a batch,
places of maxima, another divisor; and the reverse, `max_unpool1d` to `max_unpool3d`.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

from meta import op
from meta.base.errors import TypeInferError
from meta.op.core.check import pair
from meta.op.core.function import as_operand, device_of, function
from meta.op.core.op import ComposedOp
from meta.op.core.window import DATA, Taps, window
from meta.op.pool import POOLING

Extents = int | Sequence[int]
FULL_SLICE = (sys.maxsize, sys.maxsize)
"""The ends of slices that are all examples and channels, however many there are."""


def _batch(x: Any, n: int) -> tuple[Any, bool]:
    """Return x with an axis of examples, and whether it had none."""
    one = x.ndim == n + 1
    return (op.expand_dims(x, 0) if one else x), one


def _example(y: Any, one: bool) -> Any:
    return op.squeeze(y, (0,)) if one else y


def _error(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=name, **more)


def _require_usual(name: str, n: int, layout: str) -> None:
    if layout != DATA[n]:
        what = "indices are counted in the usual layout"
        raise _error(name, what, expected=DATA[n], found=layout)


def _require_known(name: str, x: Any) -> None:
    if not all(isinstance(size, int) for size in x.shape[2:]):
        what = "the extents of the spatial axes must be numbers"
        raise _error(name, what, found=list(x.shape))


def _per_axis(value: Any, name: str, n: int) -> tuple[int, ...]:
    return pair(value if isinstance(value, int) else tuple(value), name, n)


def _max_pool(n: int, base: ComposedOp) -> None:
    @base.calls
    def call(
        x: Any,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        dilation: Extents = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
        *,
        layout: str = DATA[n],
    ) -> Any:
        x, one = _batch(as_operand(x), n)
        stride = kernel_size if stride is None else stride
        y = base.plain(x, kernel_size, stride, padding, dilation, ceil_mode, True, layout)
        if not return_indices:
            return _example(y, one)
        _require_usual(base.name, n, layout)
        axes = _taps(base.name, n, x, kernel_size, stride, padding, dilation, ceil_mode)
        return _example(y, one), _example(_argmax_indices(x, y, axes), one)


def _avg_pool(n: int, base: ComposedOp) -> None:
    @base.calls
    def call(
        x: Any,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        divisor_override: int | None = None,
        layout: str = DATA[n],
    ) -> Any:
        x, one = _batch(as_operand(x), n)
        stride = kernel_size if stride is None else stride
        if divisor_override is None:
            window_ = (kernel_size, stride, padding, 1, ceil_mode, count_include_pad, layout)
            return _example(base.plain(x, *window_), one)
        if divisor_override == 0 or layout != DATA[n]:
            what = "divisor_override is a number other than 0, in the usual layout"
            found = f"{divisor_override} with {layout}"
            raise _error(base.name, what, expected=DATA[n], found=found)
        axes = _taps(base.name, n, x, kernel_size, stride, padding, 1, ceil_mode)
        x = op.pad(x, _sides(axes))
        count = math.prod(axis.kernel for axis in axes)
        y = base.plain(x, kernel_size, stride, 0, 1, False, True, layout)
        return _example(op.multiply(y, count / divisor_override), one)


def _adaptive_avg(n: int, base: ComposedOp) -> None:
    @base.calls
    def call(
        x: Any, output_size: int | Sequence[int | None] | None, *, layout: str = DATA[n]
    ) -> Any:
        x, one = _batch(as_operand(x), n)
        return _example(base.plain(x, _sizes(base.name, n, x, output_size, layout), layout), one)


def _adaptive_max(n: int, base: ComposedOp) -> None:
    @base.calls
    def call(
        x: Any,
        output_size: int | Sequence[int | None] | None,
        return_indices: bool = False,
        *,
        layout: str = DATA[n],
    ) -> Any:
        x, one = _batch(as_operand(x), n)
        y = base.plain(x, _sizes(base.name, n, x, output_size, layout), layout)
        if not return_indices:
            return _example(y, one)
        _require_usual(base.name, n, layout)
        _require_known(base.name, x)
        return _example(y, one), _example(_region_argmax_indices(x, y), one)


def _sizes(
    name: str, n: int, x: Any, output_size: int | Sequence[int | None] | None, layout: str
) -> Any:
    """Return the extents of the result of adaptive pooling, those of x where None is given."""
    if isinstance(output_size, int):
        return output_size
    wanted = (None,) * n if output_size is None else tuple(output_size)
    if len(wanted) == 1:
        wanted *= n
    if x.ndim != n + 2 or sorted(layout) != sorted(DATA[n]):
        what = "x and layout do not fit"
        expected = f"{n + 1} or {n + 2} axes, and {DATA[n]} in some order"
        raise _error(name, what, expected=expected, found=f"{list(x.shape)} and {layout!r}")
    own = [x.shape[layout.index(axis)] for axis in DATA[n][2:]]
    if len(wanted) == n:
        return tuple(o if w is None else w for o, w in zip(own, wanted, strict=True))
    return wanted


def _taps(
    name: str, n: int, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Taps, ...]:
    _require_known(name, x)
    how = (kernel, stride, padding, dilation)
    kernel, stride, padding, dilation = (tuple(v) if isinstance(v, list) else v for v in how)
    return window(x.shape[2:], kernel, stride, padding, dilation, ceil)


def _extents(axis: Taps) -> tuple[int, int]:
    """Return how many inputs and windows an axis of `_taps` has."""
    size, windows = axis.size, axis.out
    assert isinstance(size, int) and isinstance(windows, int)
    return size, windows


def _sides(axes: Sequence[Taps]) -> list[tuple[int, int]]:
    """Return the padding with which every window lies inside."""
    around = [(0, 0), (0, 0)]
    for axis in axes:
        size, windows = _extents(axis)
        needed = (windows - 1) * axis.stride + axis.extent
        around.append((axis.before, max(needed - size - axis.before, 0)))
    return around


def _argmax_indices(x: Any, y: Any, axes: Sequence[Taps]) -> Any:
    """Return where the maximum of each window is among the elements of its channel: int64. It is
    the first of equal elements, and the last NaN, as torch has it.

    A tap is some elements behind the place of the first one, the same number in all windows; from
    the last to the first, each that is the maximum replaces those behind it.
    """
    where = device_of(x)
    sizes = tuple(_extents(axis)[0] for axis in axes)
    dtype = "int32" if math.prod(sizes) < 2**31 else "int64"
    widths = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    begin: Any = 0  # of each window; it may lie in the padding
    first: Any = 0  # how far behind it is the first element that does not
    for i, (axis, width) in enumerate(zip(axes, widths, strict=True)):
        windows = op.arange(0, axis.out, 1, dtype, where)
        start = windows * axis.stride - axis.before
        outside = op.floor_divide(op.maximum(-start, 0) + (axis.dilation - 1), axis.dilation)
        shape = (-1,) + (1,) * (len(axes) - 1 - i)
        begin = begin + op.reshape(start * width, shape)
        first = first + op.reshape(outside * (axis.dilation * width), shape)
    wide = op.pad(x, _sides(axes), constant_values=-math.inf)
    steps = (1, 1, *(axis.stride for axis in axes))
    spans = [(_extents(axis)[1] - 1) * axis.stride for axis in axes]
    taps = []
    for tap in itertools.product(*(range(axis.kernel) for axis in axes)):
        at = [k * axis.dilation for k, axis in zip(tap, axes, strict=True)]
        end = [b + s + 1 for b, s in zip(at, spans, strict=True)]
        read = op.strided_slice(wide, (0, 0, *at), (*FULL_SLICE, *end), steps)
        taps.append((sum(b * width for b, width in zip(at, widths, strict=True)), read))
    found = first
    for behind, read in reversed(taps):
        found = op.where(op.equal(read, y), behind, found)
    for behind, read in taps:
        found = op.where(op.isnan(read), behind, found)
    # Padding is no element, though it equals a maximum of -inf.
    found = op.where(op.equal(y, -math.inf), first, found)
    return op.astype(found + begin, "int64")


def _hit(read: Any, y: Any, rank: Any) -> Any:
    """Return numbers that are largest where a maximum counts as found: at the first of equal
    elements, and at the last NaN, as torch has it. rank: the order of what is read, from 0.
    """
    return op.where(op.isnan(read), rank + 2, op.astype(op.equal(read, y), "int32"))


def _flat(coordinates: Sequence[Any], sizes: Sequence[Any]) -> Any:
    place = coordinates[0]
    for size, coordinate in zip(sizes[1:], coordinates[1:], strict=True):
        place = place * size + coordinate
    return place


def _region_argmax_indices(x: Any, y: Any) -> Any:
    """Return where the maximum of each region, by `_hit`, is among the elements of its channel:
    int64.

    Regions along an axis differ in extent. All are read as far as the largest reaches, and its last
    element again beyond the end of a smaller one.
    """
    where, n = device_of(x), x.ndim - 2
    sizes, counts = x.shape[2:], y.shape[2:]
    if 0 in y.shape:
        return op.zeros(tuple(y.shape), "int64", where)
    begins, lasts, extents, read = [], [], [], x
    for i, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        extents.append(max(-(-(j + 1) * size // count) - j * size // count for j in range(count)))
        region = op.arange(0, count, 1, "int64", where)
        begins.append(op.floor_divide(region * size, count))
        lasts.append(op.floor_divide((region + 1) * size - 1, count))
        taps = op.arange(0, extents[i], 1, "int64", where)
        reached = op.expand_dims(begins[i], 1) + taps
        read = op.take(read, op.minimum(reached, op.expand_dims(lasts[i], 1)), 2 + 2 * i)
    read = op.permute_dims(read, (0, 1, *range(2, 2 * n + 2, 2), *range(3, 2 * n + 2, 2)))
    read = op.reshape(read, (*y.shape, math.prod(extents)))
    ranks = op.arange(0, math.prod(extents), 1, "int32", where)
    tap = op.argmax(_hit(read, op.expand_dims(y, -1), ranks), -1)
    coordinates: list[Any] = []
    for i in reversed(range(n)):
        shape = (counts[i],) + (1,) * (n - 1 - i)
        begin, last = (op.reshape(end[i], shape) for end in (begins, lasts))
        coordinates.insert(0, op.minimum(begin + op.remainder(tap, extents[i]), last))
        tap = op.floor_divide(tap, extents[i])
    return _flat(coordinates, sizes)


def _unpool(n: int) -> None:
    name = f"max_unpool{n}d"

    def unpool(
        x: Any,
        indices: Any,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        output_size: Sequence[int] | None = None,
    ) -> Any:
        x, one = _batch(as_operand(x), n)
        indices, _ = _batch(as_operand(indices), n)
        if x.ndim != n + 2 or tuple(indices.shape) != tuple(x.shape):
            found = f"x{list(x.shape)}, indices{list(indices.shape)}"
            what = "the maxima and their indices differ in shape"
            raise _error(name, what, expected=f"{n + 1} or {n + 2} axes", found=found)
        kernel = _per_axis(kernel_size, "kernel_size", n)
        steps = kernel if stride is None else _per_axis(stride, "stride", n)
        border = _per_axis(padding, "padding", n)
        sizes = tuple(
            (e - 1) * s - 2 * p + k
            for e, s, p, k in zip(x.shape[2:], steps, border, kernel, strict=True)
        )
        if output_size is not None:
            wanted = tuple(output_size)[-n:]
            near = len(wanted) == n and all(
                s - step < w < s + step for s, w, step in zip(sizes, wanted, steps, strict=True)
            )
            if not near:
                what = "output_size is not near what the window gives"
                raise _error(name, what, expected=f"{sizes}, give or take", found=output_size)
            sizes = wanted
        lead = tuple(x.shape[:2])
        empty = op.full((*lead, math.prod(sizes)), 0, x.dtype, device_of(x))
        flat = [op.reshape(t, (*lead, math.prod(t.shape[2:]))) for t in (indices, x)]
        y = op.scatter(empty, 2, *flat)
        return _example(op.reshape(y, (*lead, *sizes)), one)

    unpool.__name__ = unpool.__qualname__ = name
    unpool.__doc__ = f"""Return zeros with maxima where they were, the reverse of `max_pool{n}d`.

    x: [N, C, ...] or [C, ...], {n} spatial axes. indices: int64 of its shape, from
    ``max_pool{n}d(..., return_indices=True)``: places among the elements of a channel. kernel_size,
    stride, padding: as there. output_size: the extents of the result where several have the same
    maxima. As torch's; where indices repeat, one of the elements is written.

    Raises TypeInferError for shapes that do not fit, and IndexOutOfRange as `scatter`.

    >>> x = meta.arange({2**n}, dtype="float32").reshape((1, 1{", 2" * n}))
    >>> y, indices = meta.max_pool{n}d(x, 2, return_indices=True)
    >>> meta.max_unpool{n}d(y, indices, 2).reshape(-1).tolist()
    {[0.0] * (2**n - 1) + [2.0**n - 1.0]}
    """
    function(unpool)


for _n in DATA:
    _max_pool(_n, POOLING[f"max_pool{_n}d"])
    _avg_pool(_n, POOLING[f"avg_pool{_n}d"])
    _adaptive_max(_n, POOLING[f"adaptive_max_pool{_n}d"])
    _adaptive_avg(_n, POOLING[f"adaptive_avg_pool{_n}d"])
    _unpool(_n)
