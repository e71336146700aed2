"""Pooling and its gradients, as lines of `kernels_cuda.py`; see `kernel_list_cuda.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cuda_kernel import IMAGES, Kernel, normal, size

import meta

LAST = (64, 112, 112, 64)


def pooled(layout: str, shape: tuple[int, ...]) -> Any:
    """Return what makes images, their maxima over windows of 3 by 3, where these are, and a
    gradient.
    """
    to, back = ((0, 3, 1, 2), (0, 2, 3, 1)) if layout == "NHWC" else (range(4), range(4))

    def make(g: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
        (x,) = normal(shape)(g, dtype)
        found = F.max_pool2d(x.permute(*to), 3, 2, 1, return_indices=True)
        y, i = (t.permute(*back).contiguous() for t in found)
        return [x, y, i, *normal(tuple(y.shape))(g, dtype)]

    return make


def _max_pool_backward(x: Any, dy: Any, indices: Any) -> Any:
    return torch.ops.aten.max_pool2d_with_indices_backward(
        dy, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices
    )


POOLING = [
    Kernel(
        "pooling", "max_pool2d", lambda x: meta.max_pool2d(x, kernel_size=3, stride=2, padding=1),
        lambda x: F.max_pool2d(x, 3, 2, 1), normal(IMAGES),
    ),
    Kernel(
        "pooling", "max_pool2d, channels last",
        lambda x: meta.max_pool2d(x, kernel_size=3, stride=2, padding=1, layout="NHWC"),
        lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1), normal(LAST),
    ),
    Kernel(
        "pooling", "max_pool2d_dx",
        lambda x, y, i, dy: meta.max_pool2d_dx(x, y, dy, 3, 2, 1, 1, False, True),
        lambda x, y, i, dy: _max_pool_backward(x, dy, i), pooled("NCHW", IMAGES),
        bytes=lambda given, made: size([given[0], given[1], given[3]]) + size(made),
    ),
    Kernel(
        "pooling", "max_pool2d_dx, channels last",
        lambda x, y, i, dy: meta.max_pool2d_dx(x, y, dy, 3, 2, 1, 1, False, True, "NHWC"),
        lambda x, y, i, dy: _max_pool_backward(
            *(t.permute(0, 3, 1, 2) for t in (x, dy, i))
        ).permute(0, 2, 3, 1),
        pooled("NHWC", LAST),
        bytes=lambda given, made: size([given[0], given[1], given[3]]) + size(made),
    ),
    Kernel(
        "pooling", "avg_pool2d", lambda x: meta.avg_pool2d(x, kernel_size=2, stride=2),
        lambda x: F.avg_pool2d(x, 2), normal(IMAGES),
    ),
    Kernel(
        "pooling", "avg_pool2d_dx",
        lambda x, dy: meta.avg_pool2d_dx(x, dy, dy, 2, 2, 0, 1, False, True),
        lambda x, dy: torch.ops.aten.avg_pool2d_backward(
            dy, x, [2, 2], [2, 2], [0, 0], False, True, None
        ),
        normal(IMAGES, (64, 64, 56, 56)),
        bytes=lambda given, made: size(given[1:]) + size(made),
    ),
]  # fmt: skip
