"""``x[index]`` and ``a @ b`` with numpy's meaning, composed of operators.

So both are differentiable, work on arrays and on traced symbols, and need no kernel of their own.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from meta.base.call_context import current
from meta.base.device import CPU
from meta.base.errors import IndexOutOfRange, TraceError, TypeInferError
from meta.base.methods import Overloads
from meta.base.registry import OPERATORS
from meta.ir.dims import UnknownDim
from meta.op.core.check import broadcast_shapes
from meta.op.core.tracing import Symbol
from meta.op.dynamic import dynamic_broadcast_to, dynamic_reshape
from meta.op.gathering import adv_index, take
from meta.op.linalg import batch_matmul, matmul
from meta.op.logic import where
from meta.op.movement import concat, strided_slice
from meta.op.shapes import (
    broadcast_to,
    expand_dims,
    permute_dims,
    reshape,
    shape_as_tensor,
    squeeze,
)
from meta.runtime import trace_checks, view_copies
from meta.runtime.array_key import array_key
from meta.runtime.ndarray import array, as_array, ndarray

Array = ndarray | Symbol


def getitem(x: Any, index: Any) -> Any:
    """Return ``x[index]`` as numpy does, but that ints and slices make a copy.

    Whether memory is shared is a matter of the index, never of shapes: what consists of ``:``, None
    and Ellipsis alone is a view of ``x``; all else is a new array, and a slice is even where its
    bounds are those of the axis. As NumPy and torch have a view for ints and slices, writing to
    such a copy is an ArgumentError (`meta.runtime.view_copies`).

    ``index`` is, or is a tuple of: ints, slices (any step), None, Ellipsis, integer arrays, and
    bool masks (arrays may be lists; they broadcast together). Negative indices count from the end.
    A mask has the extents of what it masks, or 0 for some, and then picks nothing; one without
    axes, which stands alone, adds an axis with ``x`` in it, or empty.
    Of a mask the values are needed, so it cannot be traced. IndexOutOfRange (an IndexError) for an
    index out of range: of index arrays that are traced, when the program runs, and of those on
    CUDA, with META_CHECK_INDICES only, without which the nearest element is read. Other faults are
    TypeInferErrors.
    """
    if type(index) is int and type(x) is ndarray and current() is None and not x.tracked:
        # A new plan for each integer would take far longer than the copy, which is the same bits on
        # every backend.
        shape = x.shape
        if shape and -shape[0] <= index < shape[0]:
            part = x.tensor.detach()[index].clone(memory_format=torch.contiguous_format)
            view_copies.mark(part, index)
            return ndarray(part, array_key(shape[1:], x.dtype, x.device))
    answer = scalar_mask_value(index)
    if answer is not None:
        return slices(expand_dims(x, 0), [slice(0, int(answer))])
    parts = read_index(x, index)
    y = slices(x, parts.items)
    if parts.arrays:
        y = _gather(y, parts)
    elif y is not x and type(y) is ndarray:
        view_copies.mark(y.tensor, index)
    for axis in parts.new_axes:
        y = expand_dims(y, axis)
    return reshape.plain(x, x.shape) if y is x and type(x) is ndarray else y


@dataclass(frozen=True)
class ParsedIndex:
    """An index, read.

    Attributes
    ----------
    items: an int, slice or array for every axis, None for new ones. arrays: the arrays among them,
    by the axis that they index once the axes of the ints are gone. place: before how many axes of
    slices the axes come which the arrays have in common. new_axes: the axes that None inserts into
    the result, in order.
    """

    items: list[Any]
    arrays: dict[int, Any]
    place: int
    new_axes: tuple[int, ...]


def read_index(x: Array, index: Any) -> ParsedIndex:
    """Read an index of ``x``; the errors are those of `getitem`."""
    items = _items(x, index if isinstance(index, tuple) else (index,))
    left = [i for i in items if _is_array(i) or isinstance(i, slice)]
    arrays = {axis: item for axis, item in enumerate(left) if _is_array(item)}
    axes = ["new" if i is None else "old" for i in items if i is None or isinstance(i, slice)]
    place = 0
    if arrays:
        # To numpy an int next to an array is an array of ndim 0, which matters for the place of
        # the result's axes: that of the arrays, or the front if something stands between them.
        numbers = [i for i, item in enumerate(items) if _is_array(item) or isinstance(item, int)]
        together = numbers[-1] - numbers[0] == len(numbers) - 1
        first = numbers[0] if together else 0
        place = sum(isinstance(i, slice) for i in items[:first])
        before = sum(i is None or isinstance(i, slice) for i in items[:first])
        axes[before:before] = ["old"] * max(a.ndim for a in arrays.values())
    return ParsedIndex(
        items, arrays, place, tuple(a for a, kind in enumerate(axes) if kind == "new")
    )


def scalar_mask_value(index: Any) -> bool | None:
    """Return the value of an index that is one mask without axes, which adds an axis with ``x`` in
    it or an empty one; None for another index.
    """
    item = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(item, ndarray):
        is_one = item.dtype == "bool" and item.ndim == 0 and trace_checks.current_trace() is None
    else:
        is_one = isinstance(item, np.ndarray) and item.dtype == bool and item.ndim == 0
    return bool(item) if is_one else None


def _is_array(item: Any) -> bool:
    return isinstance(item, np.ndarray | ndarray | Symbol)


def _items(x: Array, index: tuple[Any, ...]) -> list[Any]:
    """Return an int, slice or array for every axis, None for new ones; masks are made indices.

    An Ellipsis stays where it stands for no axis: it still separates the arrays beside it.

    An array is a numpy one if its values are known and checked, else an ndarray or a Symbol.
    """
    read = [_read(item) for item in index]
    known: list[tuple[Any, ...]] = [
        np.nonzero(r) if isinstance(r, np.ndarray) and r.dtype == bool else (r,) for r in read
    ]
    if sum(r is Ellipsis for r in read) > 1:
        raise TypeInferError("an index can have one Ellipsis only", found=index)
    used = sum(
        len(k) for k, r in zip(known, read, strict=True) if r is not None and r is not Ellipsis
    )
    if used > x.ndim:
        raise IndexOutOfRange("too many indices", expected=f"at most {x.ndim}", found=index)
    if Ellipsis not in [r for r in read if not _is_array(r)]:
        read, known = [*read, Ellipsis], [*known, (Ellipsis,)]
    items: list[Any] = []
    axis = 0
    for r, group in zip(read, known, strict=True):
        if r is None or (r is Ellipsis and used == x.ndim):
            items.append(r)
            continue
        if r is Ellipsis:
            group = (slice(None),) * (x.ndim - used)
        elif (
            isinstance(r, np.ndarray)
            and r.dtype == bool
            and not all(
                m in (0, n) for m, n in zip(r.shape, x.shape[axis : axis + r.ndim], strict=True)
            )
        ):
            raise IndexOutOfRange(
                "a mask has another shape than what it masks",
                expected=x.shape[axis : axis + r.ndim],
                found=r.shape,
            )
        items += [_checked(item, axis + i, x.shape[axis + i]) for i, item in enumerate(group)]
        axis += len(group)
    return items


def _read(item: Any) -> Any:
    """Return an index entry as an int, slice, None, Ellipsis, numpy array, ndarray or Symbol."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, torch.Tensor):
        item = as_array(item)
    if isinstance(item, Symbol | ndarray):
        known = isinstance(item, ndarray) and trace_checks.current_trace() is None
        if item.dtype == "bool" and not known:
            raise TraceError(
                "a mask cannot be traced: the shape of the result depends on its values",
                found=repr(item),
                hint="use meta.where(mask, x, other), or index outside the traced function",
            )
        if "int" not in item.dtype and item.dtype != "bool":
            raise TypeInferError("an index must be integers or bool", found=item.dtype)
        if isinstance(item, ndarray) and known and (item.device == CPU or item.dtype == "bool"):
            return item.numpy()
        return item
    if isinstance(item, list | np.ndarray):
        values = np.asarray(item)
        values = values.astype(np.int64) if values.size == 0 and isinstance(item, list) else values
        if values.dtype.kind not in "iub" or (values.dtype == bool and values.ndim == 0):
            raise TypeInferError("an index must be integers or a mask", found=values.dtype)
        return values
    if isinstance(item, bool | np.bool_) or not hasattr(item, "__index__"):
        raise TypeInferError(
            "this cannot be an index",
            expected="an int, slice, None, Ellipsis, integer array or mask",
            found=f"{item!r} ({type(item).__name__})",
        )
    return operator.index(item)


def _checked(item: Any, axis: int, extent: Any) -> Any:
    """Return an int or a known array counted from the start; IndexOutOfRange if it is outside."""
    if not isinstance(item, int | np.ndarray):
        return item
    if not isinstance(extent, int):
        if isinstance(item, np.ndarray):
            return array(item)
        raise TypeInferError("an axis of unknown extent cannot be indexed", found=f"axis {axis}")
    values = np.asarray(item, dtype=np.int64)
    outside = values[(values < -extent) | (values >= extent)]
    if outside.size:
        raise IndexOutOfRange(
            f"index {outside.flat[0]} is out of range for axis {axis}",
            expected=f"-{extent} <= index < {extent}",
        )
    values = np.asarray(values % max(extent, 1))
    return int(values) if isinstance(item, int) else values


def slices(x: Array, items: Sequence[Any]) -> Any:
    """Apply the ints and slices; the axes of the ints are gone."""
    cuts, gone = slice_bounds(x, items)
    if cuts is None and any(isinstance(i, slice) and i != slice(None) for i in items):
        cuts = (0,), (sys.maxsize,), (1,)  # what these bounds leave out depends on the shape
    x = x if cuts is None else strided_slice(x, *cuts)
    return squeeze(x, gone) if gone else x


SliceBounds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def slice_bounds(x: Array, items: Sequence[Any]) -> tuple[SliceBounds | None, tuple[int, ...]]:
    """Return begin, end and strides of the slice that ints and slices name, None if that is all of
    x; and the axes of the ints.
    """
    cuts: list[tuple[int, int, int]] = []
    last = 0
    gone = []
    for axis, item in enumerate(i for i in items if i is not None and i is not ...):
        extent = x.shape[axis]
        whole = (0, sys.maxsize, 1)
        if isinstance(item, int):
            gone.append(axis)
            cuts.append((item, item + 1, 1))
        elif isinstance(item, slice) and item != slice(None):
            cuts.append(_cut(item, extent))
        else:
            cuts.append(whole)
        if cuts[-1] != whole:
            last = axis + 1
    begin, end, strides = zip(*cuts[:last], strict=True) if last else ((), (), ())
    return (begin, end, strides) if last else None, tuple(gone)


def _cut(item: slice, extent: Any) -> tuple[int, int, int]:
    """Return begin, end and stride of a slice as `strided_slice` takes them."""
    if not isinstance(extent, int):
        raise TypeInferError("an axis of unknown extent cannot be sliced", found=item)
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        raise TypeInferError(f"this slice cannot be used: {error}", found=item) from error
    picked = range(start, stop, step)
    if picked == range(extent):
        return 0, sys.maxsize, 1
    if not picked:
        return 0, 0, 1
    return start, stop if stop >= 0 else -extent - 1, step


def _gather(x: Any, parts: ParsedIndex) -> Any:
    """Apply the index arrays; their common axes come to their place."""
    axes, place = tuple(parts.arrays), parts.place
    indices = [on_device_of(index, x) for index in parts.arrays.values()]
    others = [a for a in range(x.ndim) if a not in parts.arrays]
    if len(axes) == 1:
        x = permute(x, (*others[:place], *axes, *others[place:]))
        return take(x, indices[0], place)
    y = adv_index((permute(x, (*axes, *others)), *indices))
    new = y.ndim - len(others)
    front = range(new, new + place)
    return permute(y, (*front, *range(new), *range(new + place, y.ndim)))


def permute(x: Any, order: tuple[int, ...]) -> Any:
    """Return the axes in an order; nothing is done for the one that they have."""
    return x if order == tuple(range(len(order))) else permute_dims(x, order)


def on_device_of(index: Any, x: Any) -> Any:
    """Return an index array on the device of ``x``."""
    if isinstance(index, np.ndarray):
        return array(index, device=x.device if isinstance(x, ndarray) else "cpu")
    return index


@matmul.calls
def matmul_any(x1: Any, x2: Any) -> Any:
    """Return ``x1 @ x2`` as numpy does: vectors, matrices, and stacks of matrices that broadcast.

    A wildcard of a pattern stands for a matrix.
    """
    if isinstance(x1, Array) and isinstance(x2, Array) and x1.ndim == 2 == x2.ndim:
        return matmul.plain(x1, x2)
    if any(isinstance(x, Overloads) and not isinstance(x, Array) for x in (x1, x2)):
        return matmul.plain(x1, x2)
    a, b = (t if isinstance(t, Symbol) else as_array(t) for t in (x1, x2))
    if a.ndim == 0 or b.ndim == 0:
        raise TypeInferError(
            "@ needs vectors or matrices; use * for numbers",
            op="matmul",
            expected="1 axis or more",
            found=f"{a.shape} @ {b.shape}",
        )
    row, column = a.ndim == 1, b.ndim == 1
    a = expand_dims(a, 0) if row else a
    b = expand_dims(b, 1) if column else b
    y = matmul.plain(a, b) if a.ndim == b.ndim == 2 else _stacked(a, b)
    gone = (*((-2,) if row else ()), *((-1,) if column else ()))
    return squeeze(y, gone) if gone else y


def _stacked(a: Any, b: Any) -> Any:
    """Multiply stacks of matrices with the operators for one matrix and for one stack axis."""
    if isinstance(a, Symbol) and any(isinstance(d, UnknownDim) for d in (*a.shape, *b.shape)):
        return _stacked_at_run_time(a, b)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.ndim == 2:
        # One matrix for all: the rows of all matrices of the left stack are the rows of one.
        own = a.shape[:-2]
        return reshape(matmul.plain(reshape(a, (prod(own) * m, k)), b), (*own, m, n))
    try:
        stack: Any = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except TypeInferError as error:
        error.op = matmul.name
        raise
    y = batch_matmul(_single_stack_axis(a, stack), _single_stack_axis(b, stack))
    return reshape(y, (*stack, m, n)) if len(stack) > 1 else y


def _stacked_at_run_time(a: Any, b: Any) -> Any:
    """Multiply stacks of matrices of which some extents are not known before the run."""
    ndim = max(a.ndim, b.ndim)
    a, b = (expand_dims(x, 0, ndim - x.ndim) if x.ndim < ndim else x for x in (a, b))
    if ndim == 3:
        return batch_matmul(a, b)
    extents = [shape_as_tensor(x) for x in (a, b)]
    own = [strided_slice(e, (0,), (ndim - 2,)) for e in extents]
    stack = where(OPERATORS["equal"](own[0], 1), own[1], own[0])
    parts = []
    for x, e in zip((a, b), extents, strict=True):
        matrix = strided_slice(e, (ndim - 2,), (ndim,))
        wide = dynamic_broadcast_to(x, concat((stack, matrix), 0))
        parts.append(dynamic_reshape(wide, concat((OPERATORS["prod"](stack, 0, True), matrix), 0)))
    rows = strided_slice(extents[0], (ndim - 2,), (ndim - 1,))
    columns = strided_slice(extents[1], (ndim - 1,), (ndim,))
    return dynamic_reshape(batch_matmul(*parts), concat((stack, rows, columns), 0))


def _single_stack_axis(x: Any, stack: tuple[Any, ...]) -> Any:
    """Return a stack as [s, m, n], s being 1 where it holds one matrix only."""
    own, matrix = x.shape[:-2], x.shape[-2:]
    if len(own) == 1 and len(stack) == 1:
        return x
    if prod(own) != 1 and own != stack:
        x = broadcast_to(x, (*stack, *matrix))
    return reshape(x, (prod(x.shape[:-2]), *matrix))


Overloads.getitem = staticmethod(getitem)
