"""What may be written: arrays whose elements do not share memory."""

from __future__ import annotations

import torch

from meta.base.errors import ArgumentError


def require_writable(tensor: torch.Tensor, what: str) -> None:
    """Raise ArgumentError for an expanded view: writing one of its elements changes others."""
    repeated = any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if repeated and tensor.numel():
        raise ArgumentError(
            f"{what} cannot be written, as its elements share memory",
            expected="an array without strides of 0",
            found=f"shape {tuple(tensor.shape)}, strides {tensor.stride()}",
            hint="copy it first, with meta.array(x)",
        )
