"""Sorting on ATen: LIBRARY, for generated code counts how many elements come before each.

[512, 512], float32, on an H200, 2026-11-22: 25 us, generated 96 ms; `topk` of 8 28 and 134 us."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.argsort, plevel=LIBRARY)
def argsort(x, axis, descending, dtype):
    indices = torch.sort(x, dim=axis, descending=descending, stable=True).indices
    return indices.to(TO_TORCH[dtype]).contiguous()


@dialect.kernel(op.sort, plevel=LIBRARY)
def sort(x, axis, descending):
    return torch.sort(x, dim=axis, descending=descending, stable=True).values.contiguous()


# Not torch.topk, whose choice among equal elements is not specified.
@dialect.kernel(op.topk, plevel=LIBRARY)
def topk(x, k, axis, largest, ret_type, dtype):
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    values = values.narrow(axis, 0, k).clone(memory_format=torch.contiguous_format)
    indices = indices.narrow(axis, 0, k).to(
        TO_TORCH[dtype], copy=True, memory_format=torch.contiguous_format
    )
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]


@dialect.kernel(op.searchsorted, plevel=LIBRARY)
def searchsorted(x1, x2, right, dtype):
    found = torch.searchsorted(x1.contiguous(), x2.contiguous(), right=right)
    return found.to(TO_TORCH[dtype])
