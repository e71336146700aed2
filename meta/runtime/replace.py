"""Exchanging the tensor of an array, which changes where it is.

Who holds addresses of arrays compares `count` to see, without looking at them, that all are where
they were.
"""

from __future__ import annotations

import torch

from meta.runtime.ndarray import ndarray

count = 0
"""How many tensors were exchanged in this process."""


def replace_tensor(array: ndarray, tensor: torch.Tensor) -> None:
    """Let an array be in the memory of a tensor of the same shape, strides, dtype and device."""
    global count
    array.tensor = tensor
    count += 1
