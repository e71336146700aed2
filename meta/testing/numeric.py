"""Numeric gradients by central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def numeric_gradient(
    function: Callable[..., torch.Tensor],
    args: list[torch.Tensor],
    dy: torch.Tensor,
    step: float = 1e-6,
) -> list[torch.Tensor]:
    """Return the gradient of sum(function(*args) * dy) with respect to each float64 argument.

    ``function`` maps torch tensors to a torch tensor of ``dy``'s shape; its own derivative code is
    not used. The error is of order step^2 plus 1e-16 / step for values near 1 (Numerical Recipes,
    5.7).
    """
    gradients = []
    for x in args:
        gradient = torch.zeros_like(x)
        flat, out = x.view(-1), gradient.view(-1)
        for i in range(flat.numel()):
            old = flat[i].item()
            flat[i] = old + step
            above = _value(function(*args), dy)
            flat[i] = old - step
            below = _value(function(*args), dy)
            flat[i] = old
            out[i] = (above - below) / (2 * step)
        gradients.append(gradient)
    return gradients


def _value(y: Any, dy: torch.Tensor) -> float:
    return float((y.double() * dy).sum())
