"""Pooling as torch calls it: windows that step by their own size, one example without a batch,
places of maxima, another divisor; and the reverse, `max_unpool1d` to `max_unpool3d`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from meta import op
from meta.base.errors import TypeInferError
from meta.op.core.check import pair
from meta.op.core.function import device_of, function, operand
from meta.op.core.op import ComposedOp
from meta.op.core.window import DATA, Taps, window
from meta.op.pool import POOLING

Extents = int | Sequence[int]


def _batch(x: Any, n: int) -> tuple[Any, bool]:
    """Return x with an axis of examples, and whether it had none."""
    one = x.ndim == n + 1
    return (op.expand_dims(x, 0) if one else x), one


def _example(y: Any, one: bool) -> Any:
    return op.squeeze(y, (0,)) if one else y


def _refused(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=name, **more)


def _each(value: Any, name: str, n: int) -> tuple[int, ...]:
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
        x, one = _batch(operand(x), n)
        stride = kernel_size if stride is None else stride
        y = base.plain(x, kernel_size, stride, padding, dilation, ceil_mode, True, layout)
        if not return_indices:
            return _example(y, one)
        if layout != DATA[n]:
            what = "indices are counted in the usual layout"
            raise _refused(base.name, what, expected=DATA[n], found=layout)
        axes = _taps(base.name, n, x, kernel_size, stride, padding, dilation, ceil_mode)
        return _example(y, one), _example(_places(x, y, axes), one)


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
        x, one = _batch(operand(x), n)
        stride = kernel_size if stride is None else stride
        if divisor_override is None:
            window_ = (kernel_size, stride, padding, 1, ceil_mode, count_include_pad, layout)
            return _example(base.plain(x, *window_), one)
        if divisor_override == 0 or layout != DATA[n]:
            what = "divisor_override is a number other than 0, in the usual layout"
            found = f"{divisor_override} with {layout}"
            raise _refused(base.name, what, expected=DATA[n], found=found)
        axes = _taps(base.name, n, x, kernel_size, stride, padding, 1, ceil_mode)
        x = op.pad(x, _sides(axes))
        count = math.prod(axis.kernel for axis in axes)
        y = base.plain(x, kernel_size, stride, 0, 1, False, True, layout)
        return _example(op.multiply(y, count / divisor_override), one)


def _adaptive(n: int, base: ComposedOp) -> None:
    @base.calls
    def call(
        x: Any, output_size: int | Sequence[int | None] | None, *, layout: str = DATA[n]
    ) -> Any:
        x, one = _batch(operand(x), n)
        if isinstance(output_size, int):
            return _example(base.plain(x, output_size, layout), one)
        wanted = (None,) * n if output_size is None else tuple(output_size)
        if len(wanted) == 1:
            wanted *= n
        own = [x.shape[layout.index(axis)] for axis in DATA[n][2:]]
        if len(wanted) == n:
            wanted = tuple(o if w is None else w for o, w in zip(own, wanted, strict=True))
        return _example(base.plain(x, wanted, layout), one)


def _taps(
    name: str, n: int, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Taps, ...]:
    sizes = x.shape[2:]
    if not all(isinstance(size, int) for size in sizes):
        what = "the extents of the spatial axes must be numbers"
        raise _refused(name, what, found=list(x.shape))
    how = (kernel, stride, padding, dilation)
    kernel, stride, padding, dilation = (tuple(v) if isinstance(v, list) else v for v in how)
    return window(sizes, kernel, stride, padding, dilation, ceil)


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


def _places(x: Any, y: Any, axes: Sequence[Taps]) -> Any:
    """Return where the first maximum of each window is among the elements of its channel: int64."""
    where = device_of(x)
    sizes = tuple(axis.size for axis in axes)
    inside = op.full((1, 1, *sizes), True, "bool", where)
    around, hits = _sides(axes), []
    wide, inside = op.pad(x, around), op.pad(inside, around, constant_values=False)
    steps = (1, 1, *(axis.stride for axis in axes))
    spans = [(_extents(axis)[1] - 1) * axis.stride for axis in axes]
    for taps in itertools.product(*(range(axis.kernel) for axis in axes)):
        begin = [k * axis.dilation for k, axis in zip(taps, axes, strict=True)]
        end = [b + s + 1 for b, s in zip(begin, spans, strict=True)]
        read, known = (
            op.strided_slice(t, (0, 0, *begin), (*t.shape[:2], *end), steps) for t in (wide, inside)
        )
        same = op.logical_or(op.equal(read, y), op.isnan(read))
        hits.append(op.cast(op.logical_and(same, known), "int32"))
    tap = op.argmax(op.stack(tuple(hits), 0), 0)
    tap = op.cast(tap, "int64") if tap.dtype != "int64" else tap
    coordinates: list[Any] = []
    for i, axis in reversed(list(enumerate(axes))):
        shape = (axis.out,) + (1,) * (len(axes) - 1 - i)
        first = op.reshape(op.arange(0, axis.out, 1, "int64", where), shape) * axis.stride
        k = op.remainder(tap, axis.kernel)
        tap = op.floor_divide(tap, axis.kernel)
        coordinates.insert(0, first - axis.before + k * axis.dilation)
    place = coordinates[0]
    for size, coordinate in zip(sizes[1:], coordinates[1:], strict=True):
        place = place * size + coordinate
    return place


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
        x, one = _batch(operand(x), n)
        indices, _ = _batch(operand(indices), n)
        if x.ndim != n + 2 or tuple(indices.shape) != tuple(x.shape):
            found = f"x{list(x.shape)}, indices{list(indices.shape)}"
            what = "the maxima and their indices differ in shape"
            raise _refused(name, what, expected=f"{n + 1} or {n + 2} axes", found=found)
        kernel = _each(kernel_size, "kernel_size", n)
        steps = kernel if stride is None else _each(stride, "stride", n)
        border = _each(padding, "padding", n)
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
                raise _refused(name, what, expected=f"{sizes}, give or take", found=output_size)
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
    """
    function(unpool)


for _n in DATA:
    _max_pool(_n, POOLING[f"max_pool{_n}d"])
    _avg_pool(_n, POOLING[f"avg_pool{_n}d"])
    _adaptive(_n, POOLING[f"adaptive_max_pool{_n}d"])
    _adaptive(_n, POOLING[f"adaptive_avg_pool{_n}d"])
    _unpool(_n)
