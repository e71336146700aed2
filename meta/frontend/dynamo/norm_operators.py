"""Normalisation by the root mean square as an operator of PyTorch's, with one for its gradient.

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
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.definitions import define


def _dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, weight.dtype)


def _normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x, in at least float32, by its root mean square, and the factor."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * inverse, inverse


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The normalisation, of the dtype to which x and weight are promoted."""
    return (_normalised(x, eps)[0] * weight).to(_dtype(x, weight))


def _fake_forward(x: Tensor, weight: Tensor, _eps: float) -> Tensor:
    return torch.empty_like(x, dtype=_dtype(x, weight))


def _rms_norm_dx(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients by x and weight."""
    xhat, inverse = _normalised(x, eps)
    slope = dy.to(xhat.dtype)
    g = slope * weight
    dx = inverse * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dw = (slope * xhat).flatten(0, -2).sum(0) if x.ndim > 1 else slope * xhat
    return dx.to(x.dtype), dw.to(weight.dtype)


def _fake_backward(_dy: Tensor, x: Tensor, weight: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight = ctx.saved_tensors
    dx, dw = RMS_NORM_DX(dy, x, weight, ctx.eps)
    return dx, dw, None


RMS_NORM_DX = define(
    "rms_norm_dx(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor dx, Tensor dw)",
    _rms_norm_dx,
    _fake_backward,
)
RMS_NORM = define(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    _rms_norm,
    _fake_forward,
    (_backward, _save),
)


@aten("meta.rms_norm", op.rms_norm)
def _convert(x: Any, weight: Any, *, eps: float, call: Any) -> Any:
    x, weight = _promoted(x, weight)
    return op.rms_norm(x, (x.shape[-1],), weight, eps)


@aten("meta.rms_norm_dx", op.rms_norm_dx)
def _convert_dx(dy: Any, x: Any, weight: Any, *, eps: float) -> Any:
    wide, scale = _promoted(x, weight)
    dx, dw = op.rms_norm_dx(wide, scale, cast(dy, wide.dtype), -1, eps)
    return cast(dx, x.dtype), cast(dw, weight.dtype)


def _promoted(x: Any, weight: Any) -> tuple[Any, Any]:
    if x.dtype == weight.dtype:
        return x, weight
    wide = "float64" if "float64" in (x.dtype, weight.dtype) else "float32"
    return cast(x, wide), cast(weight, wide)
