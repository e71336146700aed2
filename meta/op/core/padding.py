"""What lies around a padded tensor, for type functions and kernels.

To add a mode, say here which element a place outside reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meta.base.errors import TypeInferError
from meta.ir.types import SymbolicDim
from meta.op.core.check import require

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")

TORCH_MODES = {"replicate": "edge", "circular": "wrap"}
"""What torch calls modes."""


def flat_widths(pad_width: Any, ndim: int) -> int | tuple[int, ...]:
    """Return the widths that a user's call of `pad` gives, flat.

    Raises TypeInferError for what is neither pairs, nor a pair, nor an int: a flat list, which
    torch takes for the last axis first.
    """
    given = pad_width.tolist() if isinstance(pad_width, np.ndarray) else pad_width
    if _is_width(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, tuple | list):
        if len(given) == 2 and all(map(_is_width, given)):
            return (*given,) * ndim
        pairs = [tuple(p) if isinstance(p, tuple | list) else p for p in given]
        if all(isinstance(p, tuple) and len(p) == 2 and all(map(_is_width, p)) for p in pairs):
            if len(pairs) == 1:
                return (*pairs[0],) * ndim
            if len(pairs) == ndim:
                return tuple(w for p in pairs for w in p)
    flat = isinstance(given, tuple | list) and len(given) > 2 and all(map(_is_width, given))
    torchs = "torch's list begins with the last axis: as pairs it is "
    raise TypeInferError(
        "pad_width does not fit",
        op="pad",
        expected=f"a pair (before, after) for each of {ndim} axes, ((1, 1), ...), or one pair, or "
        "one int",
        found=repr(pad_width),
        hint=torchs + _torch_pairs_text(given, ndim) if flat else None,
    )


def _torch_pairs_text(flat: Any, ndim: int) -> str:
    """Return torch's list as pairs, if it is one."""
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat) - 1, 2)][::-1]
    return str(tuple([(0, 0)] * (ndim - len(pairs)) + pairs))


def _is_width(value: Any) -> bool:
    return isinstance(value, int | np.integer | SymbolicDim) and not isinstance(value, bool)


def pad_pairs(pad_width: int | tuple[int, ...], ndim: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for every axis from a flat list of pairs, or one width for all."""
    flat = (pad_width,) * (2 * ndim) if isinstance(pad_width, int) else pad_width
    require(
        len(flat) == 2 * ndim,
        "pad_width must be an int, or one pair (before, after) for every axis, flat",
        expected=f"{2 * ndim} ints",
        found=pad_width,
    )
    require(min(flat, default=0) >= 0, "pad_width is negative", found=pad_width)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def max_padding(extent: int, mode: str) -> int:
    """Return how far an axis can be padded on one side: up to the end of what is copied there."""
    if mode == "reflect":
        return max(extent - 1, 0)
    if mode in ("symmetric", "wrap"):
        return extent
    return 2**63 if extent else 0


def mirror(mode: str) -> int:
    """Return how far behind the first element its mirror lies: 0 on it, 1 on its outer border."""
    return 1 if mode == "symmetric" else 0


def mirror_ranges(
    before: int, after: int, extent: int, mode: str
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return (begin, end, sum) of the elements that a mirror's two sides copy.

    Element i in [begin, end) is also found at place ``sum - i`` of the padded axis.
    """
    m = mirror(mode)
    front = (1 - m, before + 1 - m, before - m)
    back = (extent - after - 1 + m, extent - 1 + m, before + 2 * (extent - 1) + m)
    return front, back


def source_index(place: Any, extent: int, mode: str, least: Any, greatest: Any) -> Any:
    """Return which element the place ``place`` of an axis reads, counted from the first element.

    ``least`` and ``greatest`` are the minimum and maximum of two, so that a place may be a number,
    a tensor of numbers or an expression. A mirror needs no condition: of the two ways to count, the
    one that stays inside is the smaller at the back, and the larger in front.
    """
    last = extent - 1
    if mode == "wrap":
        return (place + extent) % extent
    if mode == "edge":
        return greatest(least(place, last), 0)
    m = mirror(mode)
    return least(greatest(place, -m - place), 2 * last + m - greatest(place, -m - place))
