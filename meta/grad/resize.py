"""Gradients of resizing and sampling of images."""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from meta import op
from meta.grad.core import gradient, pullback
from meta.ir.types import TensorType
from meta.op.core.resample import upsampled


def resizing(forward, backward):
    """Register the gradients of a resize over any number of axes, and of its gradient."""

    @gradient(forward)
    def of_resize(x, dy, *options):
        return backward(x, dy, *options)

    @gradient(backward)
    def of_dx(x, dy: TensorType, dy_, out_dtype, *options):
        return op.zeros_like(x), forward(dy_, *options, dy.dtype)


for _n in (1, 2, 3):
    resizing(getattr(op, f"resize{_n}d"), getattr(op, f"resize{_n}d_dx"))


@gradient(op.upsampling)
def upsampling(x, scale_h, scale_w, layout, method, align_corners, dy):
    sizes = tuple(x.shape[layout.index(letter)] for letter in "HW")
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    return op.resize2d_dx(x, dy, size, layout, method, mode)


ALPHA = -0.75


@dataclass
class Tap:
    """What samples read of one axis: elements int64[N, P], weights of x's dtype [N, P], and the
    weights' derivatives in the grid's coordinate.
    """

    element: Any
    weight: Any
    slope: Any


def _inside_mask(position, size):
    """Return 1 where an element is one of the image, else 0."""
    return op.cast_like((position >= 0.0) & (position <= size - 1.0), position)


def _reflect(position, size, align_corners):
    """Return the position reflected at the ends, and the sign of its direction."""
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        return op.zeros_like(position), op.zeros_like(position)
    distance = position - low
    away = op.abs(distance)
    flips = op.floor(away / span)
    extra = away - flips * span
    odd = op.cast_like(flips - 2.0 * op.floor(flips / 2.0) > 0.5, position)
    sign = op.where(distance < 0.0, op.full_like(position, -1.0), op.ones_like(position))
    return low + extra + odd * (span - 2.0 * extra), sign * (1.0 - 2.0 * odd)


def _source_position(position, size, padding_mode, align_corners):
    """Return where a position outside is read, and the derivative of that place."""
    slope = op.ones_like(position)
    if padding_mode == "reflection":
        position, slope = _reflect(position, size, align_corners)
    if padding_mode != "zeros":
        slope = slope * op.cast_like((position > 0.0) & (position < size - 1.0), position)
        position = op.clip(position, 0.0, size - 1.0)
    return position, slope


def _taps(coordinate, size, mode, padding_mode, align_corners):
    """Return the taps of one axis for the grid's coordinates [N, P]."""
    scale = (size - 1) / 2 if align_corners else size / 2
    position = (coordinate + 1.0) * scale - (0.0 if align_corners else 0.5)
    factor = op.ones_like(position)
    if mode != "bicubic":
        position, factor = _source_position(position, size, padding_mode, align_corners)
    if mode != "bicubic" or padding_mode != "reflection":
        # Elements far outside are all alike; integers have bounds.
        position = op.clip(position, -3.0, size + 3.0)
    base = op.round(position) if mode == "nearest" else op.floor(position)
    t = position - base
    if mode == "nearest":
        shares = [(0.0, op.ones_like(t), op.zeros_like(t))]
    elif mode == "bilinear":
        shares = [(0.0, 1.0 - t, op.full_like(t, -1.0)), (1.0, t, op.ones_like(t))]
    else:
        shares = [(float(k), *_cubic(t, k)) for k in (-1, 0, 1, 2)]
    found = []
    for offset, weight, slope in shares:
        element = base + offset
        if mode == "bicubic":
            element, _ = _source_position(element, size, padding_mode, align_corners)
            element = op.round(element)
        inside = _inside_mask(element, size)
        # By a clip of integers, for a NaN is no index, and its weight says what comes of it.
        index = op.clip(op.astype(element, "int64"), 0, size - 1)
        found.append(Tap(index, weight * inside, slope * inside * factor * scale))
    return found


def _cubic(t, k):
    """Return weight and derivative of the element ``k`` behind the base (Keys, 1981)."""
    d = op.abs(t - float(k))
    a = ALPHA
    sign = op.sign(t - float(k))
    if k in (0, 1):
        return ((a + 2) * d - (a + 3)) * d * d + 1.0, sign * ((3 * (a + 2)) * d - 2 * (a + 3)) * d
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a, sign * ((3 * a * d - 10 * a) * d + 8 * a)


@gradient(op.grid_sample)
def grid_sample(x, grid, dy, *options):
    return op.grid_sample_dx(x, grid, dy, *options)


@gradient(op.grid_sample_dx)
def of_grid_sample_dx(x, grid, dy, dy_, *options):
    return pullback(lambda *arrays: _sampling_gradients(*arrays, *options), (x, grid, dy), dy_)


def _sampling_gradients(x, grid, dy, mode, padding_mode, align_corners):
    """dx: every sample's dy, spread with its weights over what it read. dgrid: per axis, dy times
    what was read by the derivatives of the weights, summed over channels.
    """
    dtype = x.dtype
    wide = dtype if dtype == "float64" else "float32"
    n, c, *extents = x.shape
    points = prod(grid.shape[1:-1])
    flat = op.reshape(op.astype(x, wide), (n, c, prod(extents)))
    grad = op.reshape(op.astype(dy, wide), (n, c, points))
    places = op.reshape(op.astype(grid, wide), (n, points, len(extents)))
    options = (mode, padding_mode, align_corners)
    axes = [
        _taps(places[:, :, len(extents) - 1 - axis], size, *options)
        for axis, size in enumerate(extents)
    ]
    dx, dgrid = op.zeros_like(flat), [op.zeros_like(places[:, :, 0]) for _ in extents]
    for taps in product(*axes):
        index, weight = taps[0].element, taps[0].weight
        for tap, size in zip(taps[1:], extents[1:], strict=True):
            index, weight = index * size + tap.element, weight * tap.weight
        index = op.broadcast_to(op.reshape(index, (n, 1, points)), (n, c, points))
        dx = dx + op.take_along_axis_dx(flat, grad * op.reshape(weight, (n, 1, points)), index, 2)
        if mode == "nearest":
            continue
        part = op.sum(op.take_along_axis(flat, index, 2) * grad, 1)
        for axis, tap in enumerate(taps):
            slope = tap.slope
            for other, factor in enumerate(taps):
                slope = slope if other == axis else slope * factor.weight
            dgrid[axis] = dgrid[axis] + part * slope
    stacked = op.stack(tuple(reversed(dgrid)), 2)
    return op.astype(op.reshape(dx, x.shape), dtype), op.astype(
        op.reshape(stacked, grid.shape), dtype
    )
