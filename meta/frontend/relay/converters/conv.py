"""Converters of convolutions, in blocked layouts too, transposed ones, deformable ones, and those
whose kernel another operator has transformed before: by Winograd's transform, or into blocks for
matrix products.

The kernel of a transposed convolution is (in, out/groups, ...). What that order is called changed:
TVM up to 0.7 says OIHW and means it, 0.8 to 0.11 say IOHW where they mean it and have another order
as default, later versions have IOHW as default. The text of a program does not say its version.

The deformable convolution (Dai et al., arXiv:1703.06211) is interpolated samples of the image and a
matrix product. What it is made of has gradients, so it has them too.

The transforms of kernels lose nothing: converters of these convolutions undo them and convolve. So
a program gives the same with `meta`'s own kernels, whatever its TVM had tuned it for.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import torch

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import cast_to, product
from meta.frontend.relay.layout import change_layout, extents, per_axis, to_plain, unblocked
from meta.frontend.relay.registry import relay
from meta.op.core.check import pair
from meta.op.core.window import DATA, KERNEL, pads, transposed_kernel_layout
from meta.runtime.ndarray import array

BASES = {1: op.conv1d, 2: op.conv2d, 3: op.conv3d}
TRANSPOSED_BASES = {1: op.conv_transpose1d, 2: op.conv_transpose2d, 3: op.conv_transpose3d}
# These state blocked layouts, and are the same otherwise.
BLOCKED = ("conv2d_NCHWc", "conv2d_NCHWc_int8", "depthwise_conv2d_NCHWc")
# The number of channels is that of the weight.
_OF_WEIGHT = ("channels", "kernel_layout")


def require_kernel(weight, layout, kernel_size):
    """Raise Unconvertible if the spatial extents of a kernel are not those that a call states."""
    if kernel_size is None:
        return
    letters = "DHW"[3 - (len(layout) - 2) :]
    found = extents(weight, layout, letters)
    stated = kernel_size if len(kernel_size) == len(letters) else kernel_size * len(letters)
    if found != tuple(stated):
        raise Unconvertible(f"kernel_size={kernel_size} is not that of the weight, {found}")


def _depthwise_kernel(weight, layout, order, channels, groups):
    """Return a kernel in the order of `KERNEL`, one per output channel, where it is that of a
    depthwise convolution with several outputs per channel: [C, multiplier, ...], as layouts like
    HWOI have it. Any other is returned as it is.
    """
    outputs, inputs = extents(weight, layout, order[:2])
    if not (groups > 1 and groups == channels == outputs and inputs > 1):
        return weight, layout
    weight = change_layout(weight, layout, order)
    return op.reshape(weight, (outputs * inputs, 1, *weight.shape[2:])), order


def _window(*, strides, padding, dilation, groups, **more):
    """Return the attributes of a window as base operators take them, by position."""
    sizes = (strides, padding, *more.values(), dilation)
    return (*map(per_axis, sizes), groups)


def convolve(
    data, weight, *, data_layout, kernel_layout, out_layout, kernel_size, out_dtype, **window
):
    """Return a convolution as the operators of this family describe it."""
    x, w = to_plain(data, data_layout), to_plain(weight, kernel_layout)
    count = x.ndim - 2
    letters, kernel, result = (
        unblocked(data_layout),
        unblocked(kernel_layout),
        out_layout or data_layout,
    )
    require_kernel(w, kernel, kernel_size)
    (channels,) = extents(x, letters, "C")
    w, kernel = _depthwise_kernel(w, kernel, KERNEL[count], channels, window["groups"])
    given = (*_window(**window), letters, kernel, unblocked(result))
    y = product(lambda a, b: BASES[count].plain(a, b, *given), x, w, out_dtype)
    return change_layout(y, unblocked(result), result)


for _base in BASES.values():
    relay(f"nn.{_base.name}", _base, ignore=("channels",))(convolve)
relay(*(f"nn.contrib_{name}" for name in BLOCKED), op.conv2d, ignore=("channels",))(convolve)


@relay("nn.conv2d_backward_weight", op.conv2d_dw, ignore=("channels",))
def conv2d_backward_weight(
    grad, data, *, data_layout, kernel_layout, out_layout, kernel_size, out_dtype, **window
):
    """The attributes hold the layouts of (grad, data, result) as those of (data, kernel, out)."""
    if kernel_size is None:
        raise Unconvertible("kernel_size is needed: other kernels have the same result's extents")
    given = kernel_layout if "N" in kernel_layout else DATA[2]
    result = out_layout if "O" in out_layout else KERNEL[2]
    dy, x = to_plain(grad, data_layout), to_plain(data, given)
    (outputs,), (inputs,) = (
        extents(dy, unblocked(data_layout), "C"),
        extents(x, unblocked(given), "C"),
    )
    height, width = kernel_size if len(kernel_size) == 2 else kernel_size * 2
    sizes = {"O": outputs, "I": inputs // window["groups"], "H": height, "W": width}
    shape = tuple(sizes[letter] for letter in unblocked(result))
    layouts = (unblocked(given), unblocked(result), unblocked(data_layout))

    def gradient(a, b):
        return op.conv2d_dw(b, None, a, shape, *_window(**window), *layouts)

    return change_layout(product(gradient, dy, x, out_dtype), unblocked(result), result)


def _kernel_layout(stated, call):
    """Return what a call's layout is called since 0.12: I is the input's channels."""
    if call.version is None:
        return stated
    absent = "kernel_layout" not in call.given
    if call.version <= (0, 7):
        return transposed_kernel_layout(stated) if stated.index("O") < stated.index("I") else stated
    return transposed_kernel_layout(stated) if absent and call.version <= (0, 11) else stated


def transpose(
    data, weight, *, data_layout, kernel_layout, out_layout, kernel_size, out_dtype, call, **window
):
    """Return a transposed convolution as the operators of this family describe it."""
    stored = _kernel_layout(kernel_layout, call)
    x, w = to_plain(data, data_layout), to_plain(weight, stored)
    letters, kernel, result = unblocked(data_layout), unblocked(stored), out_layout or data_layout
    require_kernel(w, kernel, kernel_size)
    channels, inputs = extents(x, letters, "C"), extents(w, kernel, "I")
    if channels != inputs:
        raise Unconvertible(
            f"the weight has {inputs[0]} input channels (layout {stored}), the data {channels[0]}",
            hint="the kernel's layout, of which old files say another than they have",
        )
    given = (*_window(**window), letters, kernel, unblocked(result))
    y = product(lambda a, b: TRANSPOSED_BASES[x.ndim - 2].plain(a, b, *given), x, w, out_dtype)
    return change_layout(y, unblocked(result), result)


for _n, _base in TRANSPOSED_BASES.items():
    relay(f"nn.conv{_n}d_transpose", _base, ignore=("channels",))(transpose)


def _regular(taps, places, window, axis, like, device):
    """Return where the taps without offsets lie on an axis: [1, 1, taps, *places]."""
    before, stride, dilation = (numbers[axis] for numbers in window)
    tap = torch.arange(taps[axis], dtype=torch.float64) * float(dilation)
    tap = tap.repeat_interleave(taps[1]) if axis == 0 else tap.repeat(taps[0])
    place = torch.arange(places[axis], dtype=torch.float64) * float(stride) - float(before)
    place = place[:, None] if axis == 0 else place[None, :]
    grid = (tap[:, None, None] + place).expand(-1, *places)
    return array(grid[None, None], like.dtype, device=device)


def _neighbours(at, extent):
    """Return the elements around coordinates on an axis, [0, extent), with their weights."""
    first, last = op.floor(at), float(extent - 1)
    behind, fraction = first + 1.0, at - first
    exists = op.less_equal(behind, last)
    second = op.where(exists, fraction, op.zeros_like(fraction))
    return (first, 1.0 - fraction), (op.minimum(behind, last), second)


def _sampled(image, y, x):
    """Return [N, G, C/G, S], the samples of an image [N, G, C/G, H, W] at coordinates [N, G, S].

    Between elements it is interpolated; behind the last row or column it fades to 0. Before the
    first ones it is 0 at once, as in TVM.
    """
    n, groups, channels, height, width = image.shape
    flat = op.reshape(image, (n, groups, channels, height * width))
    inside = op.logical_and(
        op.logical_and(op.greater_equal(y, 0.0), op.less(y, float(height))),
        op.logical_and(op.greater_equal(x, 0.0), op.less(x, float(width))),
    )
    # What is outside is read somewhere inside, and left out at the end.
    y, x = (op.where(inside, v, op.zeros_like(v)) for v in (y, x))
    rows, columns = _neighbours(y, height), _neighbours(x, width)
    total = None
    for row, down_weight in rows:
        for column, right_weight in columns:
            # They are in range, which the bounds tell whoever looks at indices.
            row_of = op.clip(op.astype(row, "int64"), 0, height - 1)
            at = row_of * width + op.clip(op.astype(column, "int64"), 0, width - 1)
            at = op.broadcast_to(op.expand_dims(at, 2), (n, groups, channels, y.shape[2]))
            weight = op.expand_dims(down_weight * right_weight, 2)
            part = op.take_along_axis(flat, at, 3) * cast_to(weight, flat.dtype)
            total = part if total is None else total + part
    return op.where(op.expand_dims(inside, 2), total, op.zeros_like(total))


@relay(
    "nn.deformable_conv2d", op.take_along_axis, op.batch_matmul, ignore=("channels", "kernel_size")
)
def deformable_conv2d(
    data, offset, weight, *, groups, deformable_groups, data_layout, out_dtype, call, **how
):
    """Offsets are (vertical, horizontal) pairs for each tap of each deformable group."""
    image = change_layout(data, data_layout, DATA[2])
    moves = change_layout(offset, data_layout, DATA[2])
    kernel = change_layout(weight, how["kernel_layout"], KERNEL[2])
    (n, channels, height, width), outputs = image.shape, kernel.shape[0]
    taps, places = kernel.shape[2:], moves.shape[2:]
    count, size = taps[0] * taps[1], places[0] * places[1]
    if moves.shape[1] != 2 * count * deformable_groups or channels % deformable_groups:
        raise Unconvertible(
            f"{moves.shape[1]} offsets do not fit {count} taps, {channels} channels and "
            f"{deformable_groups} deformable groups"
        )
    steps = pair(how["strides"], "strides"), pair(how["dilation"], "dilation")
    window = (pads(per_axis(how["padding"]))[:2], *steps)
    moves = op.reshape(moves, (n, deformable_groups, count, 2, *places))
    coordinates = []
    # Half precision cannot tell places apart.
    moves = cast_to(moves, "float64" if moves.dtype == "float64" else "float32")
    for axis, move in enumerate(op.split(moves, 2, 3)):
        regular = _regular(taps, places, window, axis, moves, call.device)
        found = op.reshape(move, (n, deformable_groups, count, *places)) + regular
        coordinates.append(op.reshape(found, (n, deformable_groups, count * size)))
    parts = (n, deformable_groups, channels // deformable_groups, height, width)
    samples = _sampled(op.reshape(image, parts), *coordinates)
    inputs = channels // groups * count
    columns = op.reshape(samples, (n * groups, inputs, size))
    rows = op.reshape(kernel, (1, groups, outputs // groups, inputs))
    rows = op.broadcast_to(rows, (n, groups, outputs // groups, inputs))
    rows = op.reshape(rows, (n * groups, outputs // groups, inputs))
    y = product(lambda a, b: op.batch_matmul(b, a), columns, rows, out_dtype)
    y = op.reshape(y, (n, outputs, *places))
    return change_layout(y, DATA[2], how["out_layout"] or data_layout)


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
def _transform(tile, taps):
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


@relay(*(f"nn.contrib_conv{n}d_winograd_weight_transform" for n in (2, 3)), op.einsum)
def winograd_weight(weight, *, tile_size, call):
    """[O, I, K, K] to [A, A, O, I], A = tile_size + K - 1; [O, I, D, K, K] to [A, A, A, O, I] where
    D is K, else to [A, A, D, O, I].
    """
    *depth, height, width = weight.shape[2:]
    if height != width:
        raise Unconvertible(f"the kernel is {height} by {width}, not square")
    g = array(_transform(tile_size, height), weight.dtype, device=call.device)
    if depth == [height]:
        return op.einsum("de,ai,bj,oceij->daboc", g, g, g, weight)
    return op.einsum("ai,bj,ocdij->abdoc" if depth else "ai,bj,ocij->aboc", g, g, weight)


def _undone(weight, tile_size, call):
    """Return the matrix that undoes the transform of a kernel."""
    taps = int(weight.shape[0]) + 1 - tile_size
    return array(np.linalg.pinv(_transform(tile_size, taps)), weight.dtype, device=call.device)


@relay(
    "nn.contrib_conv2d_winograd_without_weight_transform", op.einsum, op.conv2d, ignore=_OF_WEIGHT
)
def winograd_convolution(data, weight, *, tile_size, data_layout, call, **window):
    """The kernel is [A, A, I, O], for NHWC [A, A, O, I], or with O in blocks, [A, A, O/b, I, b]."""
    p = _undone(weight, tile_size, call)
    if weight.ndim == 5:
        w = op.einsum("ia,jb,abocv->ovcij", p, p, weight)
        w = op.reshape(w, (w.shape[0] * w.shape[1], *w.shape[2:]))
    else:
        order = "oc" if data_layout == "NHWC" else "co"
        w = op.einsum(f"ia,jb,ab{order}->ocij", p, p, weight)
    return convolve(data, w, data_layout=data_layout, kernel_layout="OIHW", **window)


@relay(
    "nn.contrib_conv3d_winograd_without_weight_transform", op.einsum, op.conv3d, ignore=_OF_WEIGHT
)
def winograd_convolution_3d(data, weight, *, tile_size, call, **window):
    """The kernel is [A, A, A, I, O], or [A, A, D, I, O] where its depth is not transformed."""
    p = _undone(weight, tile_size, call)
    if weight.shape[2] == weight.shape[0]:
        w = op.einsum("ed,ia,jb,dabco->oceij", p, p, p, weight)
    else:
        w = op.einsum("ia,jb,abdco->ocdij", p, p, weight)
    return convolve(data, w, kernel_layout="OIDHW", **window)


@relay("nn.contrib_conv2d_gemm_weight_transform", op.pad, op.reshape, op.permute_dims)
def gemm_weight(weights, *, tile_N, tile_K, tile_rows, tile_cols):
    """[H, W, I, O] to blocks [O/n, H*W*I/k, n, k], both filled up with zeros to whole blocks."""
    n, k = (tile_N or tile_rows), (tile_K or tile_cols)
    if not (n and k):
        raise Unconvertible("the sizes of the blocks, tile_N and tile_K, are not stated")
    rows, outputs = prod(weights.shape[:3]), weights.shape[3]
    matrix = op.reshape(weights, (rows, outputs))
    matrix = op.pad.plain(matrix, (0, -rows % k, 0, -outputs % n))
    blocks = op.reshape(matrix, (-(-rows // k), k, -(-outputs // n), n))
    return op.permute_dims(blocks, (2, 0, 3, 1))


@relay(
    "nn.contrib_conv2d_gemm_without_weight_transform",
    op.permute_dims,
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
    matrix = op.permute_dims(weight, (1, 3, 0, 2))
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
