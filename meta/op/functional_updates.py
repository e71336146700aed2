"""``x.at[index].set(value)`` and its like: a new array with a part of ``x`` changed.

They are composed of operators, so they can be traced, have gradients, and run on every backend. The
names and the meaning are JAX's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from meta.base.device import CPU
from meta.base.dtype import has_gradient
from meta.base.dtype_info import can_cast, isdtype
from meta.base.errors import TraceError, TypeInferError
from meta.base.methods import Overloads
from meta.base.registry import OPERATORS
from meta.op.arithmetic import add, negative
from meta.op.core.check import broadcast_shapes
from meta.op.core.function import as_operand
from meta.op.core.tracing import Symbol
from meta.op.creation import ones_like
from meta.op.gathering import adv_index, scatter_nd, scatter_reduce, take
from meta.op.indexing import (
    ParsedIndex,
    on_device_of,
    permute,
    read_index,
    scalar_mask_value,
    slice_bounds,
    slices,
)
from meta.op.logic import where
from meta.op.movement import concat, strided_set
from meta.op.shapes import broadcast_to, broadcast_to_like, expand_dims, reshape, squeeze
from meta.runtime import trace_checks
from meta.runtime.inplace_writes import coerce_value, require_kind
from meta.runtime.ndarray import ndarray


class IndexedUpdates:
    """What ``x.at`` is: ``x.at[index]`` is the part of x that an index names."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> IndexedUpdate:
        return IndexedUpdate(self._x, index)

    def __repr__(self) -> str:
        return f"<parts of {self._x!r}>"


class IndexedUpdate:
    """A part of an array: ``x.at[index]``. Its methods return new arrays, of the type of ``x``.

    The index is what ``x[index]`` takes, eager and traced. A mask that is traced is taken alone,
    and with a value that has one element for all that it masks. The value is a number, lists or an
    array; it is broadcast to ``x[index]``, and goes to the dtype of x, which must have its kind: a
    float does not go to integers.

    Where an index array names an element several times, `set` keeps the last value, and the others
    apply all of them.

    Raises TypeInferError for a value of another kind or shape, and IndexOutOfRange as ``x[index]``.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any) -> None:
        self._x, self._index = as_operand(x), index

    def get(self) -> Any:
        """Return ``x[index]``."""
        return self._x[self._index]

    def set(self, value: Any) -> Any:
        """Return x with ``x[index] = value``. No gradient reaches what is overwritten."""
        return self._changed(value, lambda x, v: v, _last)

    def add(self, value: Any) -> Any:
        """Return x with ``x[index] += value``."""
        return self._changed(value, add, lambda x, at, v: scatter_nd(x, at, v, "add"))

    def subtract(self, value: Any) -> Any:
        """Return x with ``x[index] -= value``. TypeInferError for bools."""
        return self._changed(
            value,
            OPERATORS["subtract"],
            lambda x, at, v: scatter_nd(x, at, negative(v), "add"),
        )

    def multiply(self, value: Any) -> Any:
        """Return x with ``x[index] *= value``."""
        return self._changed(value, OPERATORS["multiply"], _reducing("prod"))

    def divide(self, value: Any) -> Any:
        """Return x with ``x[index] /= value``. TypeInferError for integers and bools."""
        if not has_gradient(self._x.dtype):
            raise TypeInferError(
                "a quotient of integers is a floating point number, which x cannot hold",
                expected="a floating point or complex dtype",
                found=self._x.dtype,
                hint='x.astype("float32").at[index].divide(value)',
            )
        divide = OPERATORS["divide"]
        return self._changed(value, divide, lambda x, at, v: divide(x, _factors(x, at, v)))

    def power(self, value: Any) -> Any:
        """Return x with ``x[index] **= value``. TypeInferError for bools."""
        power = OPERATORS["pow"]
        return self._changed(value, power, lambda x, at, v: power(x, _factors(x, at, v)))

    def min(self, value: Any) -> Any:
        """Return x with the smaller of ``x[index]`` and ``value``; NaN if either is NaN."""
        return self._changed(value, OPERATORS["minimum"], _reducing("amin"))

    def max(self, value: Any) -> Any:
        """Return x with the larger of ``x[index]`` and ``value``; NaN if either is NaN."""
        return self._changed(value, OPERATORS["maximum"], _reducing("amax"))

    def __repr__(self) -> str:
        return f"<part {self._index!r} of {self._x!r}>"

    def _changed(self, value: Any, of_two: Callable[..., Any], by_rows: Callable[..., Any]) -> Any:
        """Return x with a part changed.

        of_two: of the part and the value of its shape, what it becomes. by_rows: of x with the
        indexed axes as its first one, the rows of it that are named (a tensor [1, n], some may be
        equal) and a value for each, what x becomes.
        """
        x, value = self._x, _of_dtype(value, self._x)
        answer = scalar_mask_value(self._index)
        if answer is not None:
            whole = IndexedUpdate(expand_dims(x, 0), slice(0, int(answer)))
            return squeeze(whole._changed(value, of_two, by_rows), 0)
        if _is_traced_mask(self._index):
            return _where_masked(x, self._index, value, of_two)
        parts = read_index(x, self._index)
        view = slices(x, parts.items)
        value = _like_slice(value, view, parts)
        if parts.arrays:
            changed = _scattered(view, parts, value, by_rows)
        else:
            changed = of_two(view, value)
        if changed is value or changed is x:  # the result is an array of its own
            changed = OPERATORS["copy"](changed)
        cuts, gone = slice_bounds(x, parts.items)
        for axis in gone:
            changed = expand_dims(changed, axis)
        return changed if cuts is None else strided_set(x, changed, *cuts)


def _of_dtype(value: Any, x: Any) -> Any:
    """Return a value as a tensor of the dtype of ``x``."""
    device = x.device if isinstance(x, ndarray) else CPU
    if not hasattr(value, "dtype") and not hasattr(value, "__dlpack__"):
        return coerce_value(value, x.dtype, device)
    found = as_operand(value)
    require_kind(found.dtype, x.dtype)
    whole = isdtype(found.dtype, "integral") and isdtype(x.dtype, "integral")
    if whole and not can_cast(found.dtype, x.dtype):
        raise TypeInferError(
            f"values of {found.dtype} may be beyond {x.dtype}",
            expected=f"values of a dtype that {x.dtype} holds",
            found=found.dtype,
            hint=f'value.astype("{x.dtype}")',
        )
    if isinstance(found, ndarray) and found.device != device:
        found = found.to(device=device)
    return found if found.dtype == x.dtype else OPERATORS["astype"](found, x.dtype)


def _like_slice(value: Any, view: Any, parts: ParsedIndex) -> Any:
    """Return a value in the shape of ``x[index]`` without the axes that None inserts.

    view: x with ints and slices applied.
    """
    others = [n for axis, n in enumerate(view.shape) if axis not in parts.arrays]
    common = _common(parts)
    shape: list[Any] = [*others[: parts.place], *common, *others[parts.place :]]
    whole = list(shape)
    for axis in parts.new_axes:
        whole.insert(axis, 1)
    extra = value.ndim - len(whole)
    if extra > 0 and set(value.shape[:extra]) == {1}:
        value = squeeze(value, tuple(range(extra)))
    new = [axis - len(whole) for axis in parts.new_axes if axis - len(whole) >= -value.ndim]
    if new and all(value.shape[axis] == 1 for axis in new):
        value = squeeze(value, tuple(new))
    if value.ndim > len(shape):
        raise TypeInferError(
            "the value does not broadcast to the part that is changed",
            expected=f"a shape that broadcasts to {tuple(whole)}",
            found=f"shape {value.shape}",
        )
    if tuple(value.shape) == tuple(shape):
        return value
    if parts.arrays or all(isinstance(n, int) for n in shape):
        return broadcast_to(value, tuple(shape))
    return broadcast_to_like(value, view)


def _common(parts: ParsedIndex) -> tuple[int, ...]:
    """Return the shape that the index arrays have in common."""
    shape = broadcast_shapes(*(a.shape for a in parts.arrays.values()))
    if not all(isinstance(n, int) for n in shape):
        raise TypeInferError(
            "index arrays of unknown extent cannot name what is changed",
            expected="extents that are known",
            found=f"shape {shape}",
        )
    return tuple(n for n in shape if isinstance(n, int))


def _scattered(view: Any, parts: ParsedIndex, value: Any, by_rows: Callable[..., Any]) -> Any:
    """Return ``view`` changed at index arrays."""
    axes = tuple(parts.arrays)
    order = (*axes, *(a for a in range(view.ndim) if a not in parts.arrays))
    front = permute(view, order)
    extents, rest = front.shape[: len(axes)], front.shape[len(axes) :]
    if not all(isinstance(n, int) for n in extents):
        raise TypeInferError(
            "an axis of unknown extent cannot be indexed by an array here",
            expected="extents that are known",
            found=f"shape {tuple(view.shape)}",
        )
    rows, count = _rows(view, parts, extents)
    new = value.ndim - len(rest)
    place = parts.place
    value = permute(
        value, (*range(place, place + new), *range(place), *range(place + new, value.ndim))
    )
    if count == 0:
        return view
    whole = front if len(axes) == 1 else reshape(front, (prod(extents), *rest))
    value = value if new == 1 else reshape(value, (count, *rest))
    changed = by_rows(whole, rows, value)
    changed = changed if len(axes) == 1 else reshape(changed, (*extents, *rest))
    return permute(changed, tuple(int(i) for i in np.argsort(order)))


def _rows(view: Any, parts: ParsedIndex, extents: tuple[int, ...]) -> tuple[Any, int]:
    """Return the rows that index arrays name, [1, n], once the indexed axes are one; and n."""
    arrays, count = list(parts.arrays.values()), prod(_common(parts))
    if all(isinstance(a, np.ndarray) for a in arrays):
        known = np.ravel_multi_index(tuple(np.broadcast_arrays(*arrays)), extents)
        return on_device_of(known.astype(np.int64).reshape(1, -1), view), count
    if 0 in extents:
        return None, count
    # Read out of a table: so negative ones count from the end, and ranges are checked.
    table = on_device_of(np.arange(prod(extents), dtype=np.int64).reshape(extents), view)
    found = adv_index((table, *(on_device_of(a, view) for a in arrays)))
    return reshape(found, (1, count)), count


def _last(x: Any, rows: Any, value: Any) -> Any:
    """Return x with rows replaced; of equal ones the last."""
    kept, n = x.shape[0], value.shape[0]
    row = squeeze(rows, 0)
    numbers = on_device_of(np.arange(kept, kept + n, dtype=np.int64), x)
    own = on_device_of(np.arange(kept, dtype=np.int64), x)
    # A row of both joined for each row of x: its own, or the last value that there is for it.
    picked = scatter_reduce(own, 0, row, numbers, "amax")
    return take(concat((x, value), 0), picked, 0)


def _reducing(how: str) -> Callable[..., Any]:
    def by_rows(x: Any, rows: Any, value: Any) -> Any:
        if x.dtype == "bool":  # which has no order: a product of bools is their smallest
            astype = OPERATORS["astype"]
            found = by_rows(astype(x, "uint8"), rows, astype(value, "uint8"))
            return astype(found, "bool")
        return scatter_reduce(x, 0, _along(rows, value), value, how)

    return by_rows


def _along(rows: Any, value: Any) -> Any:
    """Return rows, [1, n], in the shape of a value for each: [n, ...]."""
    row = reshape(rows, (value.shape[0], *(1,) * (value.ndim - 1)))
    return row if value.ndim == 1 else broadcast_to_like(row, value)


def _factors(x: Any, rows: Any, value: Any) -> Any:
    """Return the product of the values for each element of x; 1 where there is none."""
    return scatter_reduce(ones_like(x), 0, _along(rows, value), value, "prod")


def _is_traced_mask(index: Any) -> bool:
    item = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not isinstance(item, Symbol | ndarray) or item.dtype != "bool":
        return False
    return isinstance(item, Symbol) or trace_checks.current_trace() is not None


def _where_masked(x: Any, index: Any, value: Any, of_two: Callable[..., Any]) -> Any:
    """Return x changed where a mask is true whose values are not known."""
    mask = index[0] if isinstance(index, tuple) else index
    if tuple(mask.shape) != tuple(x.shape[: mask.ndim]) or value.ndim > x.ndim - mask.ndim:
        raise TraceError(
            "a traced mask has one value for all that it masks: how many these are is not known",
            expected=f"a mask of shape {tuple(x.shape)} and a number, or of leading axes and a "
            "value for the others",
            found=f"a mask of shape {tuple(mask.shape)}, a value of shape {tuple(value.shape)}",
            hint="x = meta.where(mask, value, x) with a value in the shape of x",
        )
    for _ in range(x.ndim - mask.ndim):
        mask = expand_dims(mask, -1)
    one = ones_like(x)
    # Elements that are not masked take part with 1, so that no NaN of theirs reaches a gradient.
    return where(mask, of_two(where(mask, x, one), where(mask, value, one)), x)


Overloads.at_parts = IndexedUpdates
