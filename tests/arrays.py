"""Arrays of random numbers, alone or beside the same torch tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meta.base.dtype import TO_TORCH
from meta.runtime import random
from meta.runtime.ndarray import ndarray


def randn(shape: Sequence[int], *, dtype: str = "float32", requires_grad: bool = False) -> ndarray:
    """Return standard normal values from the default generator."""
    array = random.normal(shape, dtype=dtype)
    array.requires_grad = requires_grad
    return array


def randn_torch(
    shape: Sequence[int],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    requires_grad: bool = False,
) -> tuple[ndarray, torch.Tensor]:
    """Return normal values twice, as an ndarray and as a torch tensor with memory of its own."""
    values = random.normal(shape).torch().to(device=device, dtype=TO_TORCH[dtype])
    array = ndarray(values.detach().clone().contiguous())
    array.requires_grad = requires_grad
    return array, values.detach().clone().requires_grad_(requires_grad)
