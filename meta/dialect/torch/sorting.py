"""Sorting on ATen: LIBRARY, for generated code counts how many elements come before each.

[512, 512], float32, on an H200, 2026-11-22: 25 us, generated 96 ms; `topk` of 8 28 and 134 us."""

import numpy as np
import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect

PACKED = 4096
"""Integers that are sorted with their positions."""
FEW = 8
"""Times as many elements as are chosen by `torch.topk`, not by sorting all."""


@dialect.kernel(op.argsort, plevel=LIBRARY)
def argsort(x, axis, descending, dtype):
    indices = None
    if x.dtype == torch.int64 and x.device.type == "cpu" and x.ndim == 1 and not descending:
        indices = _packed_argsort(x) if len(x) >= PACKED else None
    if indices is None:
        indices = torch.sort(x, dim=axis, descending=descending, stable=True).indices
    return indices.to(TO_TORCH[dtype]).contiguous()


def _packed_argsort(x):
    """Return the order of many integers, sorted with their positions in one word each: by NumPy's
    vectors in a third of the time of `torch.sort`. None where two words have the same upper bits.
    """
    low, high = (int(bound) for bound in x.aminmax())
    width = (len(x) - 1).bit_length()
    shift = max(0, (high - low).bit_length() + width - 64)
    words = x.numpy().view(np.uint64) - np.uint64(low % 2**64)
    words >>= np.uint64(shift)
    words <<= np.uint64(width)
    words |= np.arange(len(x), dtype=np.uint64)
    words.sort()
    order = torch.from_numpy((words & np.uint64(2**width - 1)).view(np.int64))
    words >>= np.uint64(width)
    return None if shift and (words[1:] == words[:-1]).any() else order


@dialect.kernel(op.sort, plevel=LIBRARY)
def sort(x, axis, descending):
    return torch.sort(x, dim=axis, descending=descending, stable=True).values.contiguous()


@dialect.kernel(op.topk, plevel=LIBRARY)
def topk(x, k, axis, largest, ret_type, dtype):
    found = None
    if x.device.type == "cpu" and x.ndim and 0 < FEW * k <= x.shape[axis]:
        found = _distinct_topk(x, k, axis, largest)
    values, indices = found or torch.sort(x, dim=axis, descending=largest, stable=True)
    values = values.narrow(axis, 0, k).clone(memory_format=torch.contiguous_format)
    indices = indices.narrow(axis, 0, k).to(
        TO_TORCH[dtype], copy=True, memory_format=torch.contiguous_format
    )
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]


def _distinct_topk(x, k, axis, largest):
    """Return what `torch.topk` does; None where two of these elements, or one of them and
    another, are equal or not comparable: its choice among such is not specified.
    """
    values, indices = torch.topk(x, k, dim=axis, largest=largest)
    last = values.narrow(axis, k - 1, 1)
    among = x >= last if largest else x <= last
    apart = values.narrow(axis, 1, k - 1) != values.narrow(axis, 0, k - 1)
    if int(among.sum()) != values.numel() or not apart.all() or (values != values).any():
        return None
    return values, indices


@dialect.kernel(op.searchsorted, plevel=LIBRARY)
def searchsorted(x1, x2, right, dtype):
    found = torch.searchsorted(x1.contiguous(), x2.contiguous(), right=right)
    return found.to(TO_TORCH[dtype])
