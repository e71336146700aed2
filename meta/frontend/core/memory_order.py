"""How torch's tensors lie in memory, and how programs, whose tensors are compact, meet that.

A dense tensor of permuted axes, such as an image with channels last or a transposed weight, is
compact with its axes in another order. A program takes it, and returns it, in that order, and says
by `permute_dims` which axis is which: nothing is copied, and passes see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meta import op

Order = tuple[int, ...]


def _size_hint(size: Any) -> int:
    found: Any = size.node.hint if isinstance(size, torch.SymInt) else size
    return int(found)


def order_of(tensor: Tensor) -> Order | None:
    """Return the order of axes in which a tensor is compact; the usual one for a tensor that is
    compact in it; None for a tensor that is in none, as it has gaps or repeats elements.
    """
    shape, strides = [*map(_size_hint, tensor.shape)], [*map(_size_hint, tensor.stride())]
    usual = tuple(range(len(shape)))
    if _is_compact(usual, shape, strides):
        return usual
    order = tuple(sorted(usual, key=lambda axis: (-strides[axis], axis)))
    return order if _is_compact(order, shape, strides) else None


def order_by_strides(tensor: Tensor) -> Order:
    """Return the order of axes in which a tensor lies, also one with gaps, as a part of the rows of
    another one; the usual one for a tensor that repeats elements.
    """
    found = order_of(tensor)
    if found is not None:
        return found
    usual = tuple(range(tensor.ndim))
    strides = [*map(_size_hint, tensor.stride())]
    if any(
        stride == 0 and _size_hint(n) > 1 for n, stride in zip(tensor.shape, strides, strict=True)
    ):
        return usual
    return tuple(sorted(usual, key=lambda axis: (-strides[axis], axis)))


def _is_compact(order: Order, shape: Sequence[int], strides: Sequence[int]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= shape[axis]
    return True


def inverse(order: Order) -> Order:
    """Return the order that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def is_contiguous_order(order: Order) -> bool:
    """Whether axes are in their own order."""
    return order == tuple(range(len(order)))


def permuted(x: Any, order: Order) -> Any:
    """Return a value of a program with its axes in an order."""
    return x if is_contiguous_order(order) else op.permute_dims(x, order)


def copy_with_strides(values: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a copy of a tensor that lies in memory by strides, which may repeat or leave gaps."""
    shape = values.shape
    own = [1 if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True)]
    memory = torch.empty_strided(own, strides, dtype=values.dtype, device=values.device)
    for axis, stride in enumerate(strides):
        if stride == 0 and shape[axis]:
            values = values.narrow(axis, 0, 1)
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=values.dtype, device=values.device)
    return memory.copy_(values).expand(shape)
