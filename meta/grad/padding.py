"""Gradients of padding, in the order of the operators."""

from typing import Any

from meta import op
from meta.grad.core import gradient
from meta.op.padding import MIRRORS


@gradient(op.pad)
def pad(dy: Any, pad_width: Any, pad_mode: str) -> Any:
    """dx = dy, with what lies outside added to the elements that it repeats."""
    return op.pad_dx(dy, pad_width, pad_mode)


@gradient(op.mirror_pad)
def mirror_pad(dy: Any, pad_width: Any, mode: str) -> Any:
    """dx = dy, with the mirror images added to what they show."""
    return op.pad_dx(dy, pad_width, MIRRORS[mode])


@gradient(op.pad_dx)
def pad_dx(dy_: Any, pad_width: Any, pad_mode: str) -> Any:
    """Linear in dy: the adjoint of the adjoint pads, constants being 0."""
    return op.pad(dy_, pad_width, 0.0, pad_mode)
