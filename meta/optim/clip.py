"""Bounds of gradients: by the norm of all of them together, or by value."""

from __future__ import annotations

from numbers import Real
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.optim.options import require_range

NORM_EPS = 1e-6
"""Keeps the division by a gradient's norm away from zero, as torch.nn.utils.clip_grad_norm_."""


def clipping(norm: Any, clip_norm: float) -> Any:
    """Return what gradients of a norm are multiplied by, so that it is not above ``clip_norm``."""
    return op.minimum(clip_norm / (norm + NORM_EPS), 1.0)


def require_clip(clip_norm: float | None, clip_value: float | None) -> None:
    """Raise ArgumentError for bounds of gradients out of their range, or both of them."""
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None:
            require_range("a step", name, value, isinstance(value, Real) and value > 0, "> 0")
    if clip_norm is not None and clip_value is not None:
        raise ArgumentError(
            "gradients are clipped by their norm or by value, not both",
            found=f"clip_norm={clip_norm}, clip_value={clip_value}",
        )
