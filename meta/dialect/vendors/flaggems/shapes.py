"""Shapes, strides and dtypes of tensors, by the names of ``flag_gems.utils.shape_utils`` and
``type_utils``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

__all__ = [
    "ELEMENTWISE_TYPE_PROMOTION_KIND", "MemOverlap", "all_c_contiguous", "all_the_same_shape",
    "all_the_same_stride", "bracket_next_power_of_2", "broadcast_shapes", "broadcastable",
    "broadcastable_to", "broadcasted_stride", "c_contiguous_stride", "can_use_int32_index",
    "check_tensor_attributes", "dim_compress", "get_accumulator_dtype",
    "has_internal_overlapping", "heuristics_for_num_warps", "heuristics_for_tile_size",
    "restride_dim", "stride_order", "type_promotion", "volume",
]  # fmt: skip
Shape = Sequence[int]


def broadcast_shapes(shapes: Sequence[Shape]) -> tuple[int, ...]:
    """Return the shape to which all are broadcast; an error as torch's where there is none."""
    return tuple(torch.broadcast_shapes(*map(tuple, shapes)))  # type: ignore[no-untyped-call]


def broadcastable(first: Shape, second: Shape) -> bool:
    """Whether two shapes have one to which both are broadcast."""
    pairs = zip(reversed(tuple(first)), reversed(tuple(second)), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def broadcastable_to(shape: Shape, target: Shape) -> bool:
    """Whether a tensor of a shape can be expanded to another."""
    pairs = zip(reversed(tuple(shape)), reversed(tuple(target)), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


def broadcasted_stride(shape: Shape, stride: Shape, target: Shape) -> tuple[int, ...]:
    """Return the strides of a tensor that is expanded, 0 along what is repeated."""
    assert broadcastable_to(shape, target), f"{shape} cannot be expanded to {target}"
    before = len(target) - len(shape)
    own = [
        0 if extent == 1 != wide else step
        for extent, step, wide in zip(shape, stride, target[before:], strict=True)
    ]
    return (*[0] * before, *own)


def c_contiguous_stride(shape: Shape) -> tuple[int, ...]:
    """Return the strides of a compact tensor, the last axis innermost."""
    return tuple(prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def volume(shape: Shape) -> int:
    """Return the number of elements."""
    return prod(shape)


def stride_order(strides: Shape) -> list[int]:
    """Return the axes, the innermost first."""
    return sorted(range(len(strides)), key=lambda axis: abs(strides[axis]))


def all_the_same_shape(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the tensors have one shape."""
    return len({tuple(x.shape) for x in tensors}) <= 1


def all_the_same_stride(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the tensors have the same strides."""
    return len({tuple(x.stride()) for x in tensors}) <= 1


def all_c_contiguous(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all tensors are compact."""
    return all(x.is_contiguous() for x in tensors)


def can_use_int32_index(x: torch.Tensor) -> bool:
    """Whether 32 bits hold every offset in a tensor."""
    reach = sum(n * abs(step) for n, step in zip(x.shape, x.stride(), strict=True))
    return max(reach, x.numel() * x.element_size() if x.is_contiguous() else 0) < 2**31


def check_tensor_attributes(values: Sequence[Any], are_tensors: Sequence[bool]) -> bool:
    """Return True; ValueError for a value that is a tensor and should not be, or the reverse."""
    for i, (value, expected) in enumerate(zip(values, are_tensors, strict=True)):
        if isinstance(value, torch.Tensor) != expected:
            kind = "a tensor" if expected else "no tensor"
            raise ValueError(f"argument {i} is {type(value).__name__}, expected {kind}")
    return True


def dim_compress(x: torch.Tensor, dims: int | Sequence[int]) -> torch.Tensor:
    """Return a compact tensor whose innermost axes are ``dims``, of these the one of the largest
    stride outermost.
    """
    inner = [dims] if isinstance(dims, int) else list(dims)
    inner.sort(key=x.stride, reverse=True)
    return x.permute([*(i for i in range(x.ndim) if i not in inner), *inner]).contiguous()


def restride_dim(
    x: torch.Tensor, dim: int, shape: Shape, step: int = 0, storage_offset: int | None = None
) -> torch.Tensor:
    """Return a view of a shape in which the stride of an axis is ``step`` times as long."""
    strides = [s * step if axis == dim else s for axis, s in enumerate(x.stride())]
    return x.as_strided(shape, strides, storage_offset)


class MemOverlap(enum.Enum):
    """Whether elements of a tensor share memory."""

    No = 0
    Yes = 1
    TooHard = 2


def has_internal_overlapping(x: torch.Tensor) -> MemOverlap:
    """Return whether elements of a tensor share memory, as far as its strides say at once."""
    if x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(x):
        return MemOverlap.No
    repeated = any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))
    return MemOverlap.Yes if repeated else MemOverlap.TooHard


def _power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def bracket_next_power_of_2(n: int, lower: int, upper: int) -> int:
    """Return the power of 2 that is not less than n, within bounds."""
    return min(max(_power_of_2(n), lower), upper)


def heuristics_for_tile_size(most: int, *sizes: int) -> tuple[int, ...]:
    """Return the extents of a tile of at most so many elements, the innermost axis filled first."""
    found: list[int] = []
    for size in reversed(sizes):
        found.append(min(most, _power_of_2(size)))
        most = max(1, most // found[-1])
    return tuple(reversed(found))


def heuristics_for_num_warps(tile: int) -> int:
    """Return the warps of a program that computes so many elements."""
    return 4 if tile < 2048 else 8 if tile < 4096 else 16


def type_promotion(
    *values: Any, type_promotion: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes in which torch computes, and of the result."""
    found: tuple[torch.dtype, torch.dtype] = elementwise_dtypes(
        *values, type_promotion_kind=type_promotion
    )
    return found


def get_accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of a dtype are computed."""
    half = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    return {**half, torch.complex32: torch.complex64}.get(dtype, dtype)
