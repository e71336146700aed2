"""Convolutions on the CPU that are products of matrices, where these are faster than oneDNN's: by
1x1 with the channels last, and gradients of kernels of few windows or of odd groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meta.dialect.torch import onednn
from meta.op.core.check import pair
from meta.op.core.window import pads

Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Stride, padding and dilation."""

# By 1x1, with the channels last.
#
# What oneDNN does to call a convolution, laying the kernel out anew among it, costs more than such
# a product of few pixels: from 96 to 16 channels of [4, 8, 8, 96] it takes 67 us of CPU time and
# the product 17, the gradients 72 and 78 beside 18 and 16; of [4, 16, 16, 64] to 256 channels 319
# and 261 (AMD EPYC, 2 threads, float32). With a stride, the pixels that are read are copied
# before: from 128 to 256 channels of [4, 8, 8, 128] by steps of 2 a convolution takes 91 us and
# the product 101, but its gradients 127 and 122 beside 65 and 52 (one thread).


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
    rows, matrix = _read(image, steps), _matrix(kernel, kernel_layout)
    if image.dtype is torch.float32 and onednn.is_large(rows.numel() * len(matrix)):
        return onednn.product(rows, matrix, bias)
    return F.linear(rows, matrix, bias)


def product_dx(
    dy: Tensor, kernel: Tensor, kernel_layout: str, steps: tuple[int, ...], shape: Sequence[int]
) -> Tensor:
    """Return the gradient of the image, of ``shape``: 0 of pixels that are not read."""
    matrix = _matrix(kernel, kernel_layout)
    if dy.dtype is torch.float32 and onednn.is_large(dy.numel() * matrix.shape[1]):
        dx = onednn.product(dy, matrix.t())
    else:
        dx = torch.matmul(dy, matrix)
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
    if dy.dtype is torch.float32 and onednn.is_large(rows.numel() * columns.shape[1] // 2):
        if rows.shape[1] <= columns.shape[1]:  # the wider one may be a view
            return onednn.product(rows.t(), columns.t()).view(shape)
        return onednn.product(columns.t(), rows.t()).t().contiguous().view(shape)
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


# Gradients of kernels.
#
# oneDNN lays the kernel's gradient out anew, which costs more than the work where there are few
# windows for a large kernel: with 32 windows a product of matrices is 1.5 to 1.9 times as fast,
# with 64 and 256 channels 1.1 times, with 128 it is slower (CPU, AMD EPYC, one thread, float32).
#
# And it pads the channels of each group to whole vectors. With one image and many groups, as the
# gradients of each example of a batch have, a product for each group is 1.3 to 5 times as fast from
# 256 windows on, with 1 to 7 or 12 channels in a group and kernels of 3 and 7 at a stride of 1; of
# 8, 16 or 32 channels it takes twice the time (the same CPU).
FEW_WINDOWS, MANY_WINDOWS = 64, 256
VECTOR = 8
WINDOW_ELEMENTS = 1 << 18
"""Of windows that are copied at a time, so that a product finds them in a cache."""


def by_product_of(
    dy: Tensor, w: Tensor, groups: int, window: Window
) -> Callable[[Tensor, Tensor, Tensor, Window, int], Tensor] | None:
    """Return the function of ``(dy, x, w, window, groups)`` that computes a kernel's gradient by
    products of matrices, faster than ATen does; None if there is none. Of w, only the shape counts.
    """
    if dy.is_cuda or dy.ndim != 4 or dy.dtype not in (torch.float32, torch.float64):
        return None
    if not (dy.numel() and w.numel()):
        return None
    windows = dy.numel() // dy.shape[1]
    if groups == 1:
        few = windows <= FEW_WINDOWS and w.shape[2:].numel() > 1
        return _by_product if few else None
    ragged = w.shape[1] % VECTOR != 0 and len(w) > groups
    one = dy.shape[0] == 1 and tuple(window[0]) == (1, 1) and windows >= MANY_WINDOWS
    return _by_products_of_groups if ragged and one else None


def _by_product(dy: Tensor, x: Tensor, w: Tensor, window: Window, groups: int) -> Tensor:
    """Return dw as the product of dy and x's windows, one row per window."""
    stride, padding, dilation = window
    windows = F.unfold(x, w.shape[2:], dilation, padding, stride).transpose(1, 2)
    windows = windows.reshape(-1, w.shape[1:].numel())
    return torch.mm(dy.transpose(0, 1).reshape(len(w), -1), windows).view(w.shape)


def _by_products_of_groups(dy: Tensor, x: Tensor, w: Tensor, window: Window, groups: int) -> Tensor:
    """Return dw of one image as a product for each group, of some groups at a time."""
    _, (top, left), apart = window
    columns, taps = dy.reshape(groups, len(w) // groups, -1).mT, w.shape[1:].numel()
    x = F.pad(x.reshape(groups, w.shape[1], *x.shape[2:]), (left, left, top, top))
    for axis, (k, d) in enumerate(zip(w.shape[2:], apart, strict=True), 2):
        x = x.unfold(axis, (k - 1) * d + 1, 1)[..., ::d]
    x = x.permute(0, 1, 4, 5, 2, 3)
    dw = dy.new_empty((groups, taps, columns.shape[-1]))
    count = max(1, WINDOW_ELEMENTS // (taps * columns.shape[1]))
    for some, by, out in zip(x.split(count), columns.split(count), dw.split(count), strict=True):
        torch.bmm(some.reshape(len(some), taps, -1), by, out=out)
    return dw.mT.reshape(w.shape)
