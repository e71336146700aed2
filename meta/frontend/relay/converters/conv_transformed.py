"""Converters of convolutions whose kernel another operator has transformed before: Winograd's
transform, and blocks for matrix products.

Both transforms lose nothing: the converters of the convolutions undo them and convolve. So a
program gives the same with `meta`'s own kernels, whatever its TVM had tuned it for.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from meta import op
from meta.base.device import Device
from meta.frontend.core import Unconvertible
from meta.frontend.relay.converters.conv import convolve
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import array

# The points at which TVM interpolates, by their number. Each transform of a kernel of k taps into
# tiles of m results takes m + k - 2 (Barabasz et al., arXiv:1803.10986).
_FIRST = (0, -1, 1, 1 / 2, -1 / 2, 2, -2, -1 / 4)
_POINTS: dict[int, tuple[float, ...]] = {
    3: (0, -1, 1),
    4: (0, -1, 1, 1 / 2),
    5: (0, -1, 1, 1 / 2, -2),
    6: (0, -1, 1, 1 / 2, -2, -1 / 2),
    7: _FIRST[:7],
    8: _FIRST,
    9: (*_FIRST, 4),
    10: (*_FIRST, 3 / 4, -4 / 3),
    11: (*_FIRST, 4, 3 / 4, -4 / 3),
    12: (*_FIRST, 4, 3 / 4, -4 / 3, 1 / 4),
    13: (*_FIRST, 4, 1 / 4, -3 / 4, 4 / 3, -4),
}


@cache
def _transform(tile: int, taps: int) -> np.ndarray[Any, Any]:
    """Return Winograd's matrix G, [tile + taps - 1, taps] in float64 (Lavin and Gray,
    arXiv:1509.09308, by the construction of Cook and Toom).

    Row i holds the powers of point i over its differences from the others, the first row without
    their sign; the last row stands for the point at infinity.
    """
    if not (2 <= tile <= 8 and 3 <= taps <= 7):
        raise Unconvertible(f"Winograd's transform of {taps} taps to tiles of {tile}: at most 7, 8")
    points = np.array(_POINTS[tile + taps - 2], np.float64)
    others = points[:, None] - points + np.eye(len(points))
    scale = others.prod(1)
    scale[0] = abs(scale[0])
    last = np.eye(taps)[-1:]
    return np.concatenate([points[:, None] ** np.arange(taps) / scale[:, None], last])


def _matrix(tile: int, taps: int, like, device: Device, undo: bool = False):
    """Return G, or its left inverse, as an array of the dtype of ``like``."""
    g = _transform(tile, taps)
    return array(np.linalg.pinv(g) if undo else g, like.dtype, device=device)


@relay("nn.contrib_conv2d_winograd_weight_transform", op.einsum)
def winograd_weight(weight, *, tile_size, call):
    """[O, I, K, K] to [A, A, O, I], A = tile_size + K - 1."""
    if weight.shape[2] != weight.shape[3]:
        raise Unconvertible(f"the kernel is {weight.shape[2]} by {weight.shape[3]}, not square")
    g = _matrix(tile_size, weight.shape[2], weight, call.device)
    return op.einsum((g, g, weight), "ai,bj,ocij->aboc")


@relay("nn.contrib_conv3d_winograd_weight_transform", op.einsum)
def winograd_weight_3d(weight, *, tile_size, call):
    """[O, I, D, K, K] to [A, A, A, O, I] where D is K, else to [A, A, D, O, I]."""
    depth, height, width = weight.shape[2:]
    if height != width:
        raise Unconvertible(f"the kernel is {height} by {width}, not square")
    g = _matrix(tile_size, height, weight, call.device)
    if depth == height:
        return op.einsum((g, g, g, weight), "de,ai,bj,oceij->daboc")
    return op.einsum((g, g, weight), "ai,bj,ocdij->abdoc")


def _taps(transformed, tile_size: int) -> int:
    return int(transformed.shape[0]) + 1 - tile_size


@relay(
    "nn.contrib_conv2d_winograd_without_weight_transform",
    op.einsum,
    op.conv2d,
    ignore=("channels", "kernel_layout"),
)
def winograd_convolution(data, weight, *, tile_size, data_layout, call, **window):
    """The kernel is [A, A, I, O], for NHWC [A, A, O, I], or with O in blocks, [A, A, O/b, I, b]."""
    p = _matrix(tile_size, _taps(weight, tile_size), weight, call.device, undo=True)
    if weight.ndim == 5:
        w = op.einsum((p, p, weight), "ia,jb,abocv->ovcij")
        w = op.reshape(w, (w.shape[0] * w.shape[1], *w.shape[2:]))
    else:
        order = "oc" if data_layout == "NHWC" else "co"
        w = op.einsum((p, p, weight), f"ia,jb,ab{order}->ocij")
    return convolve(data, w, data_layout=data_layout, kernel_layout="OIHW", **window)


@relay(
    "nn.contrib_conv3d_winograd_without_weight_transform",
    op.einsum,
    op.conv3d,
    ignore=("channels", "kernel_layout"),
)
def winograd_convolution_3d(data, weight, *, tile_size, call, **window):
    """The kernel is [A, A, A, I, O], or [A, A, D, I, O] where its depth is not transformed."""
    p = _matrix(tile_size, _taps(weight, tile_size), weight, call.device, undo=True)
    if weight.shape[2] == weight.shape[0]:
        w = op.einsum((p, p, p, weight), "ed,ia,jb,dabco->oceij")
    else:
        w = op.einsum((p, p, weight), "ia,jb,abdco->ocdij")
    return convolve(data, w, kernel_layout="OIDHW", **window)


@relay("nn.contrib_conv2d_gemm_weight_transform", op.pad, op.reshape, op.transpose)
def gemm_weight(weights, *, tile_N, tile_K, tile_rows, tile_cols):
    """[H, W, I, O] to blocks [O/n, H*W*I/k, n, k], both filled up with zeros to whole blocks."""
    n, k = (tile_N or tile_rows), (tile_K or tile_cols)
    if not (n and k):
        raise Unconvertible("the sizes of the blocks, tile_N and tile_K, are not stated")
    rows, outputs = prod(weights.shape[:3]), weights.shape[3]
    matrix = op.reshape(weights, (rows, outputs))
    matrix = op.pad(matrix, (0, -rows % k, 0, -outputs % n))
    blocks = op.reshape(matrix, (-(-rows // k), k, -(-outputs // n), n))
    return op.transpose(blocks, (2, 0, 3, 1))


@relay(
    "nn.contrib_conv2d_gemm_without_weight_transform",
    op.transpose,
    op.reshape,
    op.conv2d,
    ignore=("kernel_layout",),
)
def gemm_convolution(data, weight, *, channels, kernel_size, data_layout, **window):
    if weight.ndim != 4 or data_layout != "NHWC" or channels is None or kernel_size is None:
        raise Unconvertible(
            "only NHWC with a kernel in blocks [O/n, K/k, n, k], channels and kernel_size stated"
        )
    inputs = data.shape[3]
    rows = prod(kernel_size) * inputs
    matrix = op.transpose(weight, (1, 3, 0, 2))
    matrix = op.reshape(matrix, (matrix.shape[0] * matrix.shape[1], prod(matrix.shape[2:])))
    w = op.reshape(
        op.strided_slice(matrix, (0, 0), (rows, channels)), (*kernel_size, inputs, channels)
    )
    layouts = {"data_layout": data_layout, "kernel_layout": "HWIO"}
    return convolve(data, w, kernel_size=kernel_size, **layouts, **window)


relay.refuse(
    "nn.contrib_conv2d_winograd_nnpack_weight_transform",
    "nn.contrib_conv2d_winograd_nnpack_without_weight_transform",
    why="the order of its transformed kernel is private to the library NNPACK",
)
