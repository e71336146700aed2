"""Convolutions on the CPU that are products of matrices: by 1x1, with the channels last.

What oneDNN does to call a convolution, laying the kernel out anew among it, costs more than such a
product of few pixels: from 96 to 16 channels of [4, 8, 8, 96] it takes 67 us of CPU time and the
product 17, the gradients 72 and 78 beside 18 and 16; of [4, 16, 16, 64] to 256 channels 319 and
261 (AMD EPYC, 2 threads, float32). With a stride, the pixels that are read are copied before: from
128 to 256 channels of [4, 8, 8, 128] by steps of 2 a convolution takes 91 us and the product 101,
but its gradients 127 and 122 beside 65 and 52 (one thread).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meta.op.core.check import pair
from meta.op.core.window import pads

ROWS = 256
"""Pixels of one product for the gradient of a kernel: MKL cuts a longer sum of products up for its
threads, which then wait for each other.
"""

CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
"""By how many axes images have: the layout of which a pixel is a row, and strides are in order."""


def steps_of(
    image: Tensor,
    extents: Sequence[int],
    kernel_layout: str,
    stride: object,
    padding: object,
    groups: int,
    *layouts: str,
) -> tuple[int, ...] | None:
    """Return the strides of a convolution that is a product of an image's pixels by the kernel, or
    None.

    image: whichever is given of x and dy, as it lies in memory. extents: of the kernel, in its
    layout. layouts: those of x and of the result.
    """
    if groups != 1 or image.is_cuda or image.dtype not in (torch.float32, torch.float64):
        return None
    count = prod(extents)
    outputs, inputs = _channels(kernel_layout)
    if not count or count != extents[outputs] * extents[inputs] or not image.numel():
        return None
    return _steps(stride, padding, image.ndim - 2, layouts)


@lru_cache(maxsize=1024)
def _steps(
    stride: Any, padding: Any, count: int, layouts: tuple[str, ...]
) -> tuple[int, ...] | None:
    as_read = all(layout == CHANNELS_LAST.get(count) for layout in layouts)
    return pair(stride, "stride", count) if as_read and not any(pads(padding, count)) else None


@lru_cache(maxsize=64)
def _channels(kernel_layout: str) -> tuple[int, int]:
    """Return the axes of the channels after and before."""
    return kernel_layout.index("O"), kernel_layout.index("I")


def product(
    image: Tensor,
    kernel: Tensor,
    kernel_layout: str,
    steps: tuple[int, ...],
    bias: Tensor | None = None,
) -> Tensor:
    """Return the convolution of an image whose channels come last."""
    return F.linear(_read(image, steps), _matrix(kernel, kernel_layout), bias)


def product_dx(
    dy: Tensor, kernel: Tensor, kernel_layout: str, steps: tuple[int, ...], shape: Sequence[int]
) -> Tensor:
    """Return the gradient of the image, of ``shape``: 0 of pixels that are not read."""
    dx = torch.matmul(dy, _matrix(kernel, kernel_layout))
    if set(steps) == {1}:
        return dx
    spread = dx.new_zeros(shape)
    _read(spread, steps).copy_(dx)
    return spread


def product_dw(
    dy: Tensor, image: Tensor, kernel_layout: str, steps: tuple[int, ...], shape: Sequence[int]
) -> Tensor:
    """Return the gradient of the kernel, of ``shape``."""
    rows, columns = _rows(dy), _rows(_read(image, steps))
    outputs, inputs = _channels(kernel_layout)
    if inputs < outputs:
        rows, columns = columns, rows
    parts, rest = divmod(len(rows), ROWS)
    if rest or parts < 2:
        return torch.mm(rows.t(), columns).view(shape)
    cut = rows.view(parts, ROWS, -1).transpose(1, 2), columns.view(parts, ROWS, -1)
    return torch.bmm(*cut).sum(0).view(shape)


def _matrix(kernel: Tensor, layout: str) -> Tensor:
    """Return a row for each channel after."""
    outputs, inputs = _channels(layout)
    if outputs < inputs:
        return kernel.reshape(kernel.shape[outputs], kernel.shape[inputs])
    return kernel.reshape(kernel.shape[inputs], kernel.shape[outputs]).t()


def _read(image: Tensor, steps: tuple[int, ...]) -> Tensor:
    """Return a view of the pixels that are read."""
    if set(steps) == {1}:
        return image
    return image[(slice(None), *[slice(None, None, step) for step in steps])]


def _rows(image: Tensor) -> Tensor:
    """Return a row for each pixel."""
    return image.reshape(-1, image.shape[-1])
