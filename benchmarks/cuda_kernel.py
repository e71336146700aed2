"""`Kernel`, a line of `kernels_cuda.py`, and what makes the inputs of many of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

IMAGES = (64, 64, 112, 112)
Make = Callable[[torch.Generator, torch.dtype], list[torch.Tensor]]


@dataclass(frozen=True)
class Kernel:
    """One line of the table, for each precision.

    bytes: what has to be moved at least, of the arguments and the result of torch's function; None:
    each tensor once. flops: of a kernel that is limited by arithmetic; its goal is torch's time.
    chain: several operators, whose fusion is measured.
    """

    group: str
    name: str
    meta: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: Make
    bytes: Callable[[list[torch.Tensor], list[torch.Tensor]], int] | None = None
    flops: float | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16)
    chain: bool = False

    @property
    def precisions(self) -> list[str]:
        """The names of its dtypes, and tf32 for float32 products."""
        names = [str(dtype).removeprefix("torch.") for dtype in self.dtypes]
        single = self.flops is not None and torch.float32 in self.dtypes
        return [*names, "tf32"] if single else names


def normal(*shapes: tuple[int, ...]) -> Make:
    """Inputs from the normal distribution."""
    return lambda g, dtype: [
        torch.randn(shape, generator=g, device=g.device).to(dtype) for shape in shapes
    ]


def labelled(shape: tuple[int, ...]) -> Make:
    """Logits and class numbers."""
    return lambda g, dtype: [
        *normal(shape)(g, dtype),
        torch.randint(shape[1], shape[:1], generator=g, device=g.device),
    ]


def indexed(shape: tuple[int, ...], index_shape: tuple[int, ...], limit: int) -> Make:
    """A normal input, then int64 indices below ``limit``."""
    return lambda g, dtype: [
        *normal(shape)(g, dtype),
        torch.randint(limit, index_shape, generator=g, device=g.device),
    ]


def size(tensors: list[torch.Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
