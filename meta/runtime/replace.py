"""Exchanging the tensor of an array, which changes where it is.

Who holds addresses of arrays compares `count` to see, without looking at them, that all are where
they were.
"""

from __future__ import annotations

import threading

import torch

from meta.runtime.array_key import ArrayKey
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement

count = 0
"""How many tensors were exchanged in this process."""
_counting = threading.Lock()


def replace_tensor(array: ndarray, tensor: torch.Tensor) -> None:
    """Let an array be in the memory of a tensor of the same shape, strides, dtype and device."""
    global count
    array.tensor = tensor
    with _counting:  # simulated ranks are threads
        count += 1


def replace_part(array: ndarray, tensor: torch.Tensor, key: ArrayKey, placement: Placement) -> None:
    """Let an array be another part of what it is a part of, or the whole: of another shape."""
    array.key = key
    array.placement = placement
    replace_tensor(array, tensor)
