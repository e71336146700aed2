"""``x[index] = value`` in the memory of an array, with numpy's meaning; and ``x += value``, which
binds x to a new array.

Assignment to a part is no operator: it is done at once, on the torch buffer, and is refused where
a program is traced and where a gradient would not know of it. `functional_updates.py` has what
makes a new array.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from meta.base.device import CPU
from meta.base.dtype import COMPLEX, FLOATS, has_gradient, limits
from meta.base.errors import GradientError, TraceError, TypeInferError
from meta.base.methods import Overloads
from meta.base.registry import OPERATORS
from meta.op.core.check import broadcast_shapes
from meta.op.core.tracing import Symbol
from meta.op.indexing import ParsedIndex, read_index, scalar_mask_value
from meta.runtime.inplace_writes import (
    accepts_number,
    coerce_value,
    memory_overlaps,
    require_detached,
    writable_buffer,
)
from meta.runtime.ndarray import ndarray

WHAT = "x[index] = value"


def setitem(x: Any, index: Any, value: Any) -> None:
    """Write ``value`` to ``x[index]`` in place, as numpy does; arrays that share memory see it.

    ``index``: what ``x[index]`` takes. Of equal index arrays the last element is kept. ``value``: a
    number, lists, or an array of any library; it is broadcast to ``x[index]`` and goes to the dtype
    of x, which must have its kind: a float does not go to integers, nor an int to bools.

    Raises TypeInferError for a value of another kind or shape, NumberOutOfRange for an integer
    beyond the dtype, IndexOutOfRange for an index out of range (read from CUDA, too), GradientError
    where ``x`` or ``value`` requires a gradient (see `require_unrecorded`), and TraceError in code
    that is traced.
    """
    if isinstance(x, Symbol):
        raise TraceError(
            "a traced array is written: a program has no assignment to a part",
            found=f"{x!r}[index] = value",
            hint="x = x.at[index].set(value), which is a new array; or .add, .multiply, .min, ...",
        )
    memory = writable_buffer(x, WHAT, "x = x.at[index].set(value), which is a new array")
    if type(value) in _NUMBERS and _number_is_written(x, memory, index, value):
        return
    require_detached(value, WHAT)
    values = coerce_value(value, x.dtype, x.device).tensor.detach()
    if memory_overlaps(values, memory):
        values = values.clone()
    part = _forward_slices(memory, index)
    if part is not None and values.ndim <= part.ndim:
        same = values.shape == part.shape
        part.copy_(values if same else _broadcast(values, tuple(part.shape)))
        return
    answer = scalar_mask_value(index)
    if answer is not None:
        memory, index = memory[None], slice(0, int(answer))
    _write(memory, read_index(ndarray(memory), _on_host(index)), values)


_NUMBERS = (bool, int, float)


def _number_is_written(x: ndarray, memory: torch.Tensor, index: Any, value: Any) -> bool:
    """Write a number where torch takes the index with numpy's meaning, in a tenth of the time:
    ints, slices that go forward, None and Ellipsis, or a mask of the leading axes. Return whether
    it was; what is left, errors included, is for the general way.
    """
    if not (accepts_number(value, x.dtype) and _is_finite_in(value, x.dtype)):
        return False
    if type(index) is ndarray:
        if index.dtype != "bool" or index.device != x.device or not index.ndim:
            return False
        if index.shape != x.shape[: index.ndim]:
            return False
        mask = index.tensor.reshape(*index.shape, *(1,) * (x.ndim - index.ndim))
        memory.masked_fill_(mask, value)
        return True
    part = _forward_slices(memory, index)
    if part is None:
        return False
    part.fill_(value)
    return True


def _forward_slices(memory: torch.Tensor, index: Any) -> torch.Tensor | None:
    """Return torch's view for an index of which torch has numpy's meaning; None for another, and
    for one that is wrong.
    """
    if not all(map(_is_forward, index if type(index) is tuple else (index,))):
        return None
    try:
        return memory[index]
    except (IndexError, TypeError, ValueError):
        return None


def _is_forward(item: Any) -> bool:
    if type(item) is slice:
        return type(item.step) in (int, type(None)) and (item.step is None or item.step > 0)
    return type(item) is int or item is None or item is ...


def _is_finite_in(value: Any, dtype: str) -> bool:
    """Whether torch fills a tensor of the dtype with the number: it refuses what overflows."""
    if dtype in FLOATS:
        return bool(abs(value) <= limits(dtype).max)
    return dtype in _FILLED


_FILLED = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})


def _on_host(index: Any) -> Any:
    """Return an index whose arrays are known: an index out of range would end CUDA's context."""
    if isinstance(index, tuple):
        return tuple(map(_on_host, index))
    if isinstance(index, torch.Tensor):
        return index.detach().cpu()
    if isinstance(index, ndarray) and index.device != CPU:
        return index.cpu()
    return index


def _write(memory: torch.Tensor, parts: ParsedIndex, values: torch.Tensor) -> None:
    """Write values to the elements that an index names."""
    view, reversed_axes = _view(memory, parts.items)
    arrays = tuple(parts.arrays)
    common: Any = broadcast_shapes(*(a.shape for a in parts.arrays.values()))
    others = [a for a in range(view.ndim) if a not in arrays]
    extents = [view.shape[a] for a in others]
    place, new = parts.place, len(common)
    # The extents of x[index] but for the new axes, which a value may have.
    shape = (*extents[:place], *common, *extents[place:])
    whole = list(shape)
    for axis in parts.new_axes:
        whole.insert(axis, 1)
    values = _broadcast(values, tuple(whole)).reshape(shape)
    # To the order of memory: the axes of index arrays first, then the others.
    order = (*range(place, place + new), *range(place), *range(place + new, len(shape)))
    values = values.permute(order)
    flipped = [new + others.index(axis) for axis in reversed_axes]
    values = values.flip(flipped) if flipped else values
    if not arrays:
        view.copy_(values)
        return
    if not values.numel():
        return
    view = view.permute((*arrays, *others))
    picked = [a.reshape(-1) for a in np.broadcast_arrays(*parts.arrays.values())]
    values = values.reshape(prod(common), *values.shape[new:])
    kept = _last_of_equal(picked, view.shape)
    if kept is not None:
        picked, values = [i[kept] for i in picked], values[torch.from_numpy(kept).to(view.device)]
    at = tuple(torch.from_numpy(np.ascontiguousarray(i)).to(view.device) for i in picked)
    bits = _BITS.get(view.itemsize, view.dtype)  # torch writes not all dtypes by index
    view.view(bits)[at] = values.contiguous().view(bits)


def _last_of_equal(indices: list[Any], extents: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Return the positions of the last of equal indices; None if they are in order, without equal
    ones, as those of a mask are.
    """
    rows = np.ravel_multi_index(tuple(indices), extents[: len(indices)])
    if bool((rows[1:] > rows[:-1]).all()):
        return None
    _, last = np.unique(rows[::-1], return_index=True)
    found: np.ndarray[Any, Any] = rows.size - 1 - last
    return found


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _view(memory: torch.Tensor, items: list[Any]) -> tuple[torch.Tensor, list[int]]:
    """Return the part of a tensor that the ints and slices name, and its axes that are to be read
    backwards; the axes of the ints are gone.
    """
    cut: list[Any] = []
    backwards = []
    axis = 0
    for item in (i for i in items if i is not None and i is not ...):
        if isinstance(item, int):
            cut.append(item)
            continue
        picked = slice(None)
        if isinstance(item, slice):
            found = range(*item.indices(memory.shape[len(cut)]))
            if found.step < 0:
                found = found[::-1]
                backwards.append(axis)
            picked = slice(found.start, found.stop, found.step) if found else slice(0, 0)
        cut.append(picked)
        axis += 1
    return memory[tuple(cut)], backwards


def _broadcast(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return values in the shape of what is written; TypeInferError if they do not broadcast."""
    extra = values.ndim - len(shape)
    if extra > 0 and set(values.shape[:extra]) == {1}:
        values = values.reshape(values.shape[extra:])
    fits = values.ndim <= len(shape) and all(
        v in (1, n) for v, n in zip(reversed(values.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise TypeInferError(
            "the value does not broadcast to the part that is written",
            expected=f"a shape that broadcasts to {shape}",
            found=f"shape {tuple(values.shape)}",
        )
    return values.expand(shape)


def of_same_type(x: Any, result: Any) -> Any:
    """Return what ``x += y`` binds x to, given ``x + y``: an array of the dtype and shape of x.

    A float result goes to another floating point dtype of x. A leaf that requires a gradient is
    written where nothing is recorded, as an optimizer does, and is a GradientError elsewhere.
    TypeInferError for a result of another kind or shape.
    """
    if not isinstance(x, ndarray | Symbol):
        return result
    both_float = has_gradient(x.dtype) and has_gradient(result.dtype)
    complex_part = result.dtype in COMPLEX and x.dtype not in COMPLEX
    if tuple(result.shape) != tuple(x.shape):
        raise TypeInferError(
            "an in-place operator would change the shape of the array",
            expected=f"shape {tuple(x.shape)}",
            found=f"shape {tuple(result.shape)}",
            hint="write x = x + y",
        )
    if result.dtype == x.dtype:
        return _bound(x, result)
    if not both_float or complex_part:
        raise TypeInferError(
            "an in-place operator would change the dtype of the array",
            expected=x.dtype,
            found=result.dtype,
            hint="write x = x + y, or cast the other operand",
        )
    return _bound(x, OPERATORS["astype"](result, x.dtype))


def _bound(x: Any, result: Any) -> Any:
    """Return what x is bound to: a new array, but a parameter itself, into which it is written."""
    if not (isinstance(x, ndarray) and x.requires_grad and x.node is None):
        return result
    if not isinstance(result, ndarray) or result.requires_grad:
        raise GradientError(
            "an in-place operator on an array that requires a gradient",
            hint="with meta.no_grad(): x += y writes into the array; x = x + y makes a new one",
        )
    x.update(result)
    return x


Overloads.setitem = staticmethod(setitem)
Overloads.of_same_type = staticmethod(of_same_type)
