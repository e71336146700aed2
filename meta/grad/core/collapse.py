"""The gradient of broadcasting: summing a result's gradient back to an operand's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.dtype import COMPLEX, has_gradient, is_float
from meta.base.registry import OPERATORS
from meta.ir import UNKNOWN
from meta.op.shapes import collapsed_axes


def collapse(dy: Any, like: Any) -> Any:
    """Return ``dy`` summed over the axes along which ``like`` was broadcast, in ``like``'s dtype.

    ``like`` is an array, a traced symbol or a `TensorType`; None comes back for an operand that is
    a Python number or absent.
    """
    if like is None or isinstance(like, bool | int | float):
        return None
    if dy.shape != like.shape and UNKNOWN in (*dy.shape, *like.shape):
        # Which axes were broadcast is known when the program runs.
        return in_dtype(OPERATORS["collapse_sum_like"](dy, like), like.dtype)
    axes = collapsed_axes(dy.shape, like.shape)
    if axes:
        dy = OPERATORS["sum"](dy, axes, 1)
        if dy.shape != like.shape:
            dy = OPERATORS["reshape"](dy, like.shape)
    return in_dtype(dy, like.dtype)


def in_dtype(x: Any, dtype: str) -> Any:
    """Return ``x`` in a dtype: itself if it has it. Of complex gradients, real numbers get the
    real part.
    """
    if x.dtype in COMPLEX and is_float(dtype):
        x = OPERATORS["real"](x)
    return x if x.dtype == dtype else OPERATORS["astype"](x, dtype)


def onto(operand: Any, gradient: Callable[[], Any]) -> Any:
    """Return gradient() collapsed onto the operand; None, uncomputed, if it can have no gradient.

    A Python number, an absent operand and an integer tensor have none.
    """
    if (
        operand is None
        or isinstance(operand, bool | int | float)
        or not has_gradient(operand.dtype)
    ):
        return None
    return collapse(gradient(), operand)
