"""What is checked around the launch of a kernel: its indices. What kernels promise is in
`kernel_contracts.py`, whether results are numbers is looked at in `nan_checks.py`.

**Indices** (`with_indices_checked`): IndexOutOfRange for an index that names no element, before a
kernel reads it. What the indices of an operator are, and may be, it says itself
(`meta.op.core.indices`). Eager calls, and so the interpreter, look at the arguments of every such
call; a compiled program has an instruction for it, where the indices are not known to be in range.
A look is one pass over the indices; where the first bad one is, is looked for when there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from meta.base import config
from meta.base.errors import DivisionByZero, IndexOutOfRange
from meta.base.source import Span
from meta.dialect.core.openv import Kernel, OpEnv
from meta.op.core.call import CallValues
from meta.op.core.indices import IndexRange, checks_indices
from meta.vm.eager.nan_checks import with_nans_named

FEW = 32
"""Elements that are looked at in Python, which takes less time than ATen does to begin."""
MANY = 16384
"""From more on NumPy is faster: it has vector instructions for 64 bits."""
_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtypes of which ATen has little, by those of the same bits."""
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the elements of a tensor of indices may be, in numbers.

    Attributes
    ----------
    op, argument: whose indices they are. into: what is indexed. low: the least index, None: any
    negative number is legal. high: the first that is too large. also: another legal number. axis,
    position: only the elements at this position of this axis are meant; None: all are. ordered:
    none may be less than the one before. nonzero: they are divisors, which are not 0.
    """

    op: str
    argument: str
    into: str
    low: int | None
    high: int
    also: int | None = None
    axis: int | None = None
    position: int = 0
    ordered: bool = False
    nonzero: bool = False

    def legal(self, index: str) -> str:
        """Return what an index of this name may be."""
        if self.nonzero:
            return f"{index} != 0"
        least = "" if self.low is None else f"{self.low} <= "
        also = "" if self.also is None else f", or {self.also}"
        return f"{least}{index} < {self.high}{also}"

    def __str__(self) -> str:
        part = "" if self.axis is None else f" at {self.position} of axis {self.axis}"
        return f"{self.legal(self.argument + part)}, as {self.op} needs"


def bounds_of(op: str, found: IndexRange) -> Bounds:
    """Return an operator's range of indices in numbers; its extent is known."""
    extent = found.extent
    assert isinstance(extent, int)
    low = None if found.any_below else -extent if found.from_end else 0
    argument = f"{found.slot}[{found.field}]" if found.field else found.slot
    axis, position = found.along or (None, 0)
    kinds = found.ordered, found.nonzero
    return Bounds(op, argument, found.into, low, extent, found.also, axis, position, *kinds)


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
        elif part.dtype in (torch.uint16, torch.uint32):
            part = part.long()
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

    def look_at_order(indices: torch.Tensor) -> None:
        look(indices)
        _require_order(indices, bounds, span)

    if bounds.nonzero:
        return partial(_require_divisors, bounds, span)
    return look_at_order if bounds.ordered else look


def _require_divisors(bounds: Bounds, span: Span | None, divisors: torch.Tensor) -> None:
    """Raise DivisionByZero if an element is 0."""
    if divisors.dtype in _UNSIGNED:
        divisors = divisors.view(_UNSIGNED[divisors.dtype])
    count = divisors.numel()
    if count <= FEW:
        zeros = [d for d in divisors.reshape(-1).tolist() if not d]
    else:
        zeros = [] if int(torch.count_nonzero(divisors)) == count else [0]
    if zeros:
        place = (divisors == 0).nonzero()[0].tolist()
        raise DivisionByZero(
            f"an integer is divided by 0, at {place} of {bounds.argument}",
            op=bounds.op,
            expected="divisors that are not 0",
            found=f"{int((divisors == 0).sum())} of {count} are 0",
            hint="meta.where(x2 == 0, 1, x2), or floating point, which has infinities and NaN",
            span=span,
        )


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
    hint = None
    if bounds.also is not None:
        hint = f"a row that is not to count has the label {bounds.also}"
    elif bounds.op in ("take", "take_dx"):
        hint = 'mode="clip" or mode="wrap" of take, where that is what is meant'
    raise IndexOutOfRange(
        f"index {index} at {place} of {bounds.argument} is out of range",
        op=bounds.op,
        expected=f"{bounds.legal('index')}; {bounds.high} is the extent of {bounds.into}",
        found=f"{index}; in all {count} of {part.numel()} are out of range",
        hint=hint,
        span=span,
    )


def _require_order(indices: torch.Tensor, bounds: Bounds, span: Span | None) -> None:
    """Raise IndexOutOfRange at the first element that is less than the one before."""
    less = indices[1:] < indices[:-1]
    if not bool(less.any()):
        return
    place = int(less.nonzero()[0]) + 1
    index, before = indices[place].item(), indices[place - 1].item()
    raise IndexOutOfRange(
        f"index {index} at [{place}] of {bounds.argument} is less than the one before, {before}",
        op=bounds.op,
        expected=f"{bounds.legal('index')}, and no index less than the one before",
        found=f"{index} behind {before}; in all {int(less.sum())} of {len(indices)} are less",
        span=span,
    )


def with_indices_checked(run: Callable[..., Any], call: CallValues) -> Callable[..., Any]:
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


def checked(run: Kernel, env: OpEnv, call: CallValues) -> Kernel:
    """Return an eager call's kernel, whose indices and results are looked at as far as is wanted.

    run: what runs the kernel ``env``, and takes what `OpEnv.run` takes.
    """
    if config.get("META_DEBUG_NANS"):
        run = with_nans_named(run, env, call)
    return with_indices_checked(run, call)
