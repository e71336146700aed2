"""Exchanging the tensor of an array, which changes where it is.

Who holds addresses of arrays compares `replacement_count` to see, without looking at them, that all
are where they were.
"""

from __future__ import annotations

import threading

import torch

from meta.runtime.array_key import ArrayKey
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement

replacement_count = 0
"""How many tensors were exchanged in this process."""
_count_lock = threading.Lock()


def replace_buffer(array: ndarray, tensor: torch.Tensor) -> None:
    """Let an array be in the memory of a tensor of the same shape, strides, dtype and device."""
    global replacement_count
    array.tensor = tensor
    with _count_lock:  # simulated ranks are threads
        replacement_count += 1


def replace_shard(
    array: ndarray, tensor: torch.Tensor, key: ArrayKey, placement: Placement
) -> None:
    """Let an array be another part of what it is a part of, or the whole: of another shape."""
    array.key = key
    array.placement = placement
    replace_buffer(array, tensor)
