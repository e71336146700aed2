"""Looks at indices before a kernel reads them: IndexOutOfRange for one that names no element.

What the indices of an operator are, and may be, it says itself (`meta.op.core.indices`). Eager
calls, and so the interpreter, look at the arguments of every such call; a compiled program has an
instruction for it, where the indices are not known to be in range. A look is one pass over the
indices; where the first bad one is, is looked for when there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from meta.base.errors import IndexOutOfRange
from meta.base.source import Span
from meta.op.core.call import CallValues
from meta.op.core.indices import IndexRange, checks_indices

FEW = 32
"""Elements that are looked at in Python, which takes less time than ATen does to begin."""
MANY = 16384
"""From more on NumPy is faster: it has vector instructions for 64 bits."""
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the elements of a tensor of indices may be, in numbers.

    Attributes
    ----------
    op, argument: whose indices they are. into: what is indexed. low: the least index, None: any
    negative number is legal. high: the first that is too large. also: another legal number. axis,
    position: only the elements at this position of this axis are meant; None: all are.
    """

    op: str
    argument: str
    into: str
    low: int | None
    high: int
    also: int | None = None
    axis: int | None = None
    position: int = 0

    def __str__(self) -> str:
        least = "" if self.low is None else f"{self.low} <= "
        also = "" if self.also is None else f", or {self.also}"
        part = "" if self.axis is None else f" at {self.position} of axis {self.axis}"
        return f"{least}{self.argument}{part} < {self.high}{also}, as {self.op} needs"


def bounds_of(op: str, found: IndexRange) -> Bounds:
    """Return an operator's range of indices in numbers; its extent is known."""
    extent = found.extent
    assert isinstance(extent, int)
    low = None if found.any_below else -extent if found.from_end else 0
    argument = f"{found.slot}[{found.field}]" if found.field else found.slot
    axis, position = found.along or (None, 0)
    return Bounds(op, argument, found.into, low, extent, found.also, axis, position)


def looker(bounds: Bounds, span: Span | None = None) -> Callable[[torch.Tensor], None]:
    """Return a function that raises IndexOutOfRange for a tensor with an element out of bounds."""
    lowest = -math.inf if bounds.low is None else bounds.low
    high, axis, position = bounds.high, bounds.axis, bounds.position

    def look(indices: torch.Tensor) -> None:
        part = indices if axis is None else indices.select(axis, position)
        count = part.numel()
        if count == 0:
            return
        low = lowest
        if part.dtype is torch.uint64:  # of which ATen has no order; 2**63 and more are negative
            part, low = part.view(torch.int64), 0
        if count > MANY and part.device.type == "cpu" and part.dtype in _SIGNED:
            if _all_inside(part.numpy(), low, high):
                return
        elif count > FEW:
            least, most = torch.aminmax(part)
            if low <= least.item() and most.item() < high:
                return
        else:
            flat = part if part.dim() == 1 else part.reshape(-1)
            if not [i for i in flat.tolist() if not low <= i < high]:
                return
        _look_closely(indices, part, low, bounds, span)

    return look


def _all_inside(indices: np.ndarray[Any, Any], low: float, high: int) -> bool:
    """Whether low <= index < high for all of many indices."""
    if low == 0:  # a negative number is a large one without its sign
        return int(indices.view(np.dtype(f"u{indices.dtype}")).max()) < high
    return bool(low <= indices.min()) and int(indices.max()) < high


def _look_closely(
    indices: torch.Tensor, part: torch.Tensor, low: float, bounds: Bounds, span: Span | None
) -> None:
    """Raise IndexOutOfRange at the first element that is out of bounds, if there is one."""
    inside = (part >= low) & (part < bounds.high)
    if bounds.also is not None:
        inside |= part == bounds.also
    outside = inside.logical_not()  # a NaN is no index, either
    count = int(outside.sum())
    if count == 0:
        return
    place = outside.nonzero()[0].tolist()
    if bounds.axis is not None:
        place.insert(bounds.axis, bounds.position)
    index = indices[tuple(place)].item()
    least = "" if bounds.low is None else f"{bounds.low} <= "
    more = "" if bounds.also is None else f", or {bounds.also}"
    legal = f"{least}index < {bounds.high}{more}"
    raise IndexOutOfRange(
        f"index {index} at {place} of {bounds.argument} is out of range",
        op=bounds.op,
        expected=f"{legal}; {bounds.high} is the extent of {bounds.into}",
        found=f"{index}; in all {count} of {part.numel()} are out of range",
        hint=_hint(bounds),
        span=span,
    )


def _hint(bounds: Bounds) -> str | None:
    if bounds.also is not None:
        return f"a row that is not to count has the label {bounds.also}"
    if bounds.op in ("take", "take_dx"):
        return 'mode="clip" or mode="wrap" of take, where that is what is meant'
    return None


def checked_call(run: Callable[..., Any], call: CallValues) -> Callable[..., Any]:
    """Return an eager call's kernel, which looks at its indices first, where that is to be done."""
    ranges = call.op.index_ranges(call.args) if checks_indices(call.device) else ()
    looks = tuple((place, looker(bounds_of(call.op.name, r))) for place, r in ranges)
    if not looks:
        return run
    if len(looks) == 1:
        ((place, look),) = looks

        def checked(*values: Any) -> Any:
            look(values[place])
            return run(*values)

        return checked

    def all_checked(*values: Any) -> Any:
        for place, look in looks:
            look(values[place])
        return run(*values)

    return all_checked
