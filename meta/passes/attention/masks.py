"""What masks become: arguments of the operator, such that no row of scores means another thing.

The operator gives 0 where a query may look nowhere, and the gradient of scores that are all near
-1e38 is coarse. What a program writes means something else there: minus infinity in a whole row
gives NaN, and one finite number in a whole row gives equal probabilities. So

- masks that are constants are looked at: where each query sees a key, nothing has to be done, and
  one that lets queries look back only is ``causal``, or to keys that are near, a window; numbers
  that fall evenly with the distance are slopes;
- numbers that are added are lowered by the largest of their row first. Softmax does not change by
  that; a row of equal numbers becomes one of zeros, and a row of minus infinities NaN, unless
  the program itself gives such a query 0;
- where a finite number replaces scores, a query that would see nothing sees everything, and is 0:
  all its scores are equal then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, isfinite, prod
from typing import Any

import torch

from meta import op
from meta.base.call_context import Default, use
from meta.base.dtype import TO_TORCH, bits
from meta.dialect.core import only
from meta.grad.core import in_dtype
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import Definitions
from meta.passes.attention.axes import (
    MAX_ELEMENTS,
    Refused,
    ScoreAxis,
    arranged,
    extent,
    leaves,
    value_of,
)
from meta.passes.attention.scores import Mask
from meta.passes.attention.slopes import slopes_of
from meta.runtime.ndarray import ndarray

HIDDEN = -1e4
"""A number from which on a replaced score is hidden: beside scores that are kept, exp gives 0."""
VISIBLE = -1e3
"""The least number that may be added to a score that is not hidden by it."""


@dataclass(frozen=True, slots=True)
class Masking:
    """What hides keys from queries.

    masks: in the order in which the program applies them. axes: those of the scores, the keys last.
    causal, window, slopes: the operator's own masks, where these say it all; slopes have a
    dimension for each axis but the last two. sure: whether every query sees
    a key. clears: whether the program gives a query that may look nowhere 0. trained: whether a
    mask's gradient is wanted.
    """

    masks: tuple[Mask, ...]
    axes: tuple[ScoreAxis, ...]
    clears: bool
    causal: bool = False
    sure: bool = True
    window: tuple[int, int] | None = None
    slopes: torch.Tensor | None = None
    trained: bool = False

    @property
    def known(self) -> bool:
        """Whether the operator's own masks say it all."""
        return self.causal or self.window is not None or self.slopes is not None


def masking(
    masks: Sequence[Mask],
    axes: Sequence[ScoreAxis],
    clears: bool,
    known: Definitions,
    with_slopes: bool,
) -> Masking:
    """Return how masks are to be given to the operator; raises Refused if they cannot be.

    ``axes``: of the scores, the last two of which are those of queries and keys. ``with_slopes``:
    whether numbers become slopes.
    """
    found = Masking(tuple(masks), tuple(axes), clears)
    for mask in masks:
        if mask.hides is not None and not mask.hides <= HIDDEN:
            raise Refused(f"hidden scores become {mask.hides:g}, which does not hide them")
    parts = _values(found, known)
    if parts is not None:
        sloped = _with_slopes(found, parts) if with_slopes else None
        if sloped is not None:
            return sloped
        total = _total(found, zip(masks, parts, strict=True))
        if _is_sure(total):
            return _with_own_masks(found, total)
    finite = {m.hides for m in masks if m.hides is not None and isfinite(m.hides)}
    if finite and (len(finite) > 1 or any(m.hides not in finite for m in masks)):
        raise Refused("a finite number hides scores beside another mask")
    return replace(found, sure=False)


def _is_sure(total: torch.Tensor) -> bool:
    """Whether every query sees a key, and no number is so large that it hides others."""
    return bool((total.amax(-1) >= VISIBLE).all()) and not bool((total > -VISIBLE).any())


def _with_slopes(found: Masking, parts: Sequence[torch.Tensor]) -> Masking | None:
    """Return the operator's slopes instead of masks, beside its other own masks; None if that does
    not say it all.
    """
    pairs = list(zip(found.masks, parts, strict=True))
    sloped = [(m, x) for m, x in pairs if m.hides is None and x[..., :1, :1].numel() > 1]
    rest = [(m, x) for m, x in pairs if all(m is not other for other, _ in sloped)]
    if not sloped:
        return None
    hidden, numbers = _total(found, rest), _total(found, sloped)
    apart = _sloped(found, hidden, numbers)
    extents = map(max, hidden.shape, numbers.shape)
    if apart is not None or prod(extents) > MAX_ELEMENTS:
        return apart
    # One mask may have both: slopes, and what hides.
    total = hidden + numbers
    hides = total <= HIDDEN
    shown = _without_repeats(torch.where(hides, -inf, 0.0).double())
    return _sloped(found, shown, total.masked_fill(hides, 0.0))


def _sloped(found: Masking, hidden: torch.Tensor, numbers: torch.Tensor) -> Masking | None:
    """Return the operator's own masks instead of what hides keys, and of numbers beside it."""
    rows, keys = found.axes[-2:]
    seen = hidden.broadcast_to([*hidden.shape[:-2], rows.extent, keys.extent]) == 0
    shown = _with_own_masks(found, hidden) if _is_sure(hidden) else found
    if not (shown.known or bool(seen.all())):
        return None
    span = numbers.amax() - numbers.amin()
    if bool((hidden.masked_fill(hidden == 0, -inf) + span > -VISIBLE).any()):
        return None
    slopes = slopes_of(numbers, seen.flatten(0, -3)[0])
    return None if slopes is None else replace(shown, slopes=slopes)


def _values(found: Masking, known: Definitions) -> list[torch.Tensor] | None:
    """Return what constant masks are, with a dimension per axis, of 1 where it is a batch or heads
    along which they are equal; None if one is not constant.
    """
    known_values = [value_of(m.atom, known) for m in found.masks]
    values = [v for v in known_values if v is not None]
    if len(values) < len(known_values):
        return None
    with use(Default.handler), only("torch"):
        return [
            _without_repeats(_spread(ndarray(v), m, found.axes).tensor)
            for v, m in zip(values, found.masks, strict=True)
        ]


def _total(found: Masking, parts: Iterable[tuple[Mask, torch.Tensor]]) -> torch.Tensor:
    """Return the sum of masks, of each with what it is."""
    total = torch.zeros([1] * len(found.axes), dtype=torch.float64)
    for mask, part in parts:
        if mask.hides is None:
            total = total + part.double() * (-mask.factor if mask.negated else mask.factor)
        else:
            total = total.masked_fill(part if mask.negated else ~part, -inf)
    return total.broadcast_to([*total.shape[:-1], found.axes[-1].extent])


def _without_repeats(part: torch.Tensor) -> torch.Tensor:
    """Return a mask without what repeats along its leading dimensions."""
    for axis in range(part.ndim - 2):
        first = part.narrow(axis, 0, 1)
        if part.shape[axis] > 1 and bool((part == first).all()):
            part = first
    return part


def _with_own_masks(found: Masking, total: torch.Tensor) -> Masking:
    """Return the operator's own masks instead, if query i sees the keys from i - left to i + right,
    and no number is added to what it sees.
    """
    if total.ndim < 2 or total.numel() != total.shape[-2] * total.shape[-1]:
        return found
    causal, window = own_masks(total.reshape(total.shape[-2:])) or (False, None)
    return replace(found, causal=causal, window=window)


Window = tuple[int, int]


def own_masks(rows: torch.Tensor) -> tuple[bool, Window | None] | None:
    """Return the operator's ``causal`` and ``window`` that hide what numbers to be added to scores
    [queries, keys] hide, where these are 0 elsewhere; None if no such masks do.
    """
    seen = rows == 0
    queries, keys = (torch.arange(n, device=rows.device) for n in rows.shape)
    distance = keys - queries.unsqueeze(-1)
    near = distance[seen]
    if not near.numel() or not bool((rows.masked_fill(seen, -inf) <= HIDDEN).all()):
        return None
    left, right = -int(near.min()), int(near.max())
    if left < 0 or right < 0 or bool(((distance >= -left) & (distance <= right) != seen).any()):
        return None
    far_left, far_right = left == len(queries) - 1, right == len(keys) - 1
    if right == 0 and not far_right:
        return True, None if far_left else (left, -1)
    if far_left and far_right:
        return False, None
    return False, (-1 if far_left else left, -1 if far_right else right)


def own_masks_of(mask: torch.Tensor) -> tuple[bool, Window | None] | None:
    """Return what `own_masks` does for a mask, of truth values where a key is seen or of numbers to
    be added, that is the same for all batches and heads.
    """
    if mask.ndim < 2 or not mask.numel():
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -inf)
    rows = mask.reshape(-1, *mask.shape[-2:])
    return own_masks(rows[0]) if bool((rows == rows[:1]).all()) else None


def _spread(x: Any, mask: Mask, axes: Sequence[ScoreAxis]) -> Any:
    """Return a mask with a dimension per axis of the scores."""
    own = leaves(*mask.groups)
    return arranged(x, own, [[a] if a in own else [] for a in axes])


def emitted(found: Masking, trace: Trace, dtype: str, parts: Sequence[Sequence[ScoreAxis]]) -> Any:
    """Return the operator's mask, and which queries see anything (None: all), as ``parts`` say."""
    axes = found.axes
    given = [(m, _spread(trace.symbols(m.atom), m, axes)) for m in found.masks]
    # A finite number is in the place of what is hidden, and whole rows may be.
    if not found.sure and any(m.hides is not None and isfinite(m.hides) for m in found.masks):
        seen = [op.logical_not(x) if m.negated else x for m, x in given]
        seen = reduce(op.logical_and, seen)
        sees = op.any(seen, len(axes) - 1, True)
        mask = op.logical_or(seen, op.logical_not(sees))
        return _joined(mask, axes, _repeated(found, parts)), _joined(sees, axes, parts)
    dtypes = [dtype, *(x.dtype for m, x in given if m.hides is None)]
    wide = max(dtypes, key=bits)
    total = reduce(op.add, [_numbers(m, x, wide) for m, x in given])
    if not found.sure:
        top = op.max(total, len(axes) - 1, True)
        if found.clears:  # a row of minus infinities stays one
            top = op.maximum(top, torch.finfo(TO_TORCH[wide]).min)
        # Attention does not depend on it: what would flow through it is 0 up to rounding.
        total = op.subtract(total, op.detach(top) if found.trained else top)
    return _joined(in_dtype(total, dtype), axes, _repeated(found, parts)), None


def _numbers(mask: Mask, x: Any, dtype: str) -> Any:
    """Return a mask as numbers to add."""
    if mask.hides is not None:
        zeros = op.zeros_like(op.astype(x, dtype))
        return op.where(x, -inf, zeros) if mask.negated else op.where(x, zeros, -inf)
    factor = -mask.factor if mask.negated else mask.factor
    x = in_dtype(x, dtype)
    return x if factor == 1 else op.multiply(x, factor)


def _joined(x: Any, axes: Sequence[ScoreAxis], parts: Sequence[Sequence[ScoreAxis]]) -> Any:
    """Return what has a dimension per axis with dimensions of several."""
    own = [a for a, n in zip(axes, x.shape, strict=True) if n != 1]
    return arranged(x, own, [list(part) for part in parts])


def _present(found: Masking) -> set[ScoreAxis]:
    """Return the axes that the masks have."""
    return set() if found.known else {a for m in found.masks for a in leaves(*m.groups)}


def _repeated(
    found: Masking, parts: Sequence[Sequence[ScoreAxis]]
) -> Sequence[Sequence[ScoreAxis]]:
    """Return the axes of the mask's dimensions: of batches that are several axes, the last ones if
    it has those alone, as the operator repeats its batches.
    """
    batch, *rest = parts
    present = _present(found)
    own = [a for a in batch if a in present]
    repeats = own and len(own) < len(batch) and own == list(batch[-len(own) :])
    return [own, *rest] if repeats else parts


def spread_out(found: Masking, parts: Sequence[Sequence[ScoreAxis]]) -> int:
    """Return the elements that the mask has with these dimensions, 0 if it needs all of them."""
    present = _present(found)
    parts = _repeated(found, parts)
    whole = [[a for a in part if a in present] for part in parts]
    if all(not w or len(w) == len(part) for w, part in zip(whole, parts, strict=True)):
        return 0
    return extent(a for w, part in zip(whole, parts, strict=True) if w for a in part)
