"""Whether a kernel's results are those of the kernel that priority chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meta.base import config
from meta.base.dtype import FROM_TORCH, REAL_OF, TOLERANCE

TF32 = TOLERANCE["float16"]
"""The tolerance of float32 where factors may be rounded to 10 bits of mantissa."""
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Integers of the same bits as those of which torch has no comparison."""


def difference(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], slack: float = 1.0
) -> str | None:
    """Return how results differ by more than ``slack`` times the tolerance of their dtype, None if
    they do not.

    That is |a - b| <= atol * max(1, largest |b|) + rtol * |b|: the rounding of a long sum goes with
    the size of what is summed, which is about that of the largest result, and not with an element
    in which the terms cancel. NaN equals NaN. Integers and bools are equal.
    """
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {place} is {_text(a)}, not {_text(b)}"
        wrong = _apart(a, b, slack)
        count = int(wrong.sum())
        if count:
            at = tuple(wrong.nonzero()[0].tolist())
            return (
                f"result {place} is {a[at].item()} at {list(at)}, where {b[at].item()} is expected;"
                f" {count} of {a.numel()} elements differ"
            )
    return None


def _apart(a: torch.Tensor, b: torch.Tensor, slack: float) -> torch.Tensor:
    """Return which elements of two tensors of one type differ by more than rounding."""
    dtype = FROM_TORCH[a.dtype]
    if not (a.is_floating_point() or a.is_complex()):
        signed = SIGNED.get(a.dtype, a.dtype)
        return a.view(signed) != b.view(signed)
    rtol, atol = (slack * bound for bound in tolerance(dtype, a.is_cuda))
    if not a.is_complex():
        wide = torch.float64 if a.dtype is torch.float64 else torch.float32
        a, b = a.to(wide), b.to(wide)
    sizes = b.abs()
    largest = max(float(sizes.nan_to_num(0, 0, 0).max()), 1.0) if sizes.numel() else 1.0
    same = (a == b) | (a.isnan() & b.isnan())
    return ~(same | (sizes.isfinite() & ((a - b).abs() <= atol * largest + rtol * sizes)))


def tolerance(dtype: str, is_cuda: bool) -> tuple[float, float]:
    """Return (rtol, atol) of a floating point or complex dtype."""
    dtype = REAL_OF.get(dtype, dtype)
    if dtype == "float32" and is_cuda and config.get("META_TF32"):
        return TF32
    return TOLERANCE.get(dtype, (0.25, 0.25))  # of float8: one unit in the last place


def _text(tensor: torch.Tensor) -> str:
    return f"{FROM_TORCH[tensor.dtype]}{list(tensor.shape)}"
