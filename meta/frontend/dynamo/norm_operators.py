"""Normalisation by the root mean square along an axis as an operator of PyTorch's, with one for its
gradient.

PyTorch's own form is a dozen calls for the gradient, and under autocast the statistics are kept
beside x. These keep x alone; they compute in at least float32 and round once. Zhang and Sennrich,
arXiv:1910.07467.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.arguments import cast, promote
from meta.frontend.aten.definitions import define


def _dtype(x: Tensor, weight: Tensor | None) -> torch.dtype:
    return x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)


def _normalised(x: Tensor, axis: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return x, in at least float32, by its root mean square, and the factor."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse = torch.rsqrt(wide.square().mean(axis, keepdim=True) + eps)
    return wide * inverse, inverse


def _along(x: Tensor, axis: int, weight: Tensor) -> Tensor:
    """Return a vector along an axis of x, to be broadcast to x."""
    return weight.view([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _rms_norm(x: Tensor, weight: Tensor | None, axis: int, eps: float) -> Tensor:
    """The normalisation, of the dtype to which x and weight are promoted."""
    y, _ = _normalised(x, axis, eps)
    y = y if weight is None else y * _along(x, axis, weight)
    return y.to(_dtype(x, weight))


def _fake_forward(x: Tensor, weight: Tensor | None, *_: Any) -> Tensor:
    return torch.empty_like(x, dtype=_dtype(x, weight))


def _rms_norm_dx(
    dy: Tensor, x: Tensor, weight: Tensor | None, axis: int, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradients by x and weight; without a weight nothing for it."""
    xhat, inverse = _normalised(x, axis, eps)
    slope = dy.to(xhat.dtype)
    g = slope if weight is None else slope * _along(x, axis, weight)
    dx = (inverse * (g - xhat * (g * xhat).mean(axis, keepdim=True))).to(x.dtype)
    if weight is None:
        return dx, x.new_empty(0)
    return dx, (slope * xhat).movedim(axis, -1).reshape(-1, len(weight)).sum(0).to(weight.dtype)


def _fake_backward(_: Tensor, x: Tensor, weight: Tensor | None, *_options: Any) -> Any:
    return torch.empty_like(x), x.new_empty(0) if weight is None else torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, int, float], output: Tensor) -> None:
    x, weight, ctx.axis, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx, dw = RMS_NORM_DX(dy, x, weight, ctx.axis, ctx.eps)
    return dx, None if weight is None else dw, None, None


RMS_NORM_DX = define(
    "rms_norm_dx(Tensor dy, Tensor x, Tensor? weight, int axis, float eps)"
    " -> (Tensor dx, Tensor dw)",
    _rms_norm_dx,
    _fake_backward,
)
RMS_NORM = define(
    "rms_norm(Tensor x, Tensor? weight, int axis, float eps) -> Tensor",
    _rms_norm,
    _fake_forward,
    (_backward, _save),
)


@aten("meta.rms_norm", op.rms_norm)
def _convert(x: Any, weight: Any, *, axis: int, eps: float) -> Any:
    x, weight = promote(x, weight)
    return op.rms_norm.plain(x, weight, None, axis, eps)


@aten("meta.rms_norm_dx", op.rms_norm_dx, op.zeros)
def _convert_dx(dy: Any, x: Any, weight: Any, *, axis: int, eps: float, call: Any) -> Any:
    wide, scale = promote(x, weight)
    found = op.rms_norm_dx(wide, scale, cast(dy, wide.dtype), axis, eps)
    if weight is None:
        return cast(found, x.dtype), op.zeros((0,), x.dtype, call.device)
    dx, dw = found
    return cast(dx, x.dtype), cast(dw, weight.dtype)
