"""Sampling of images in tensor expressions: per axis, what a sample reads and with which weight.
Half precision is computed in float32.
"""

import math
from itertools import product

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, constant
from meta.dialect.tvm.compute import OPAQUE, compute

ALPHA = -0.75


def _mirrored(position, size, align_corners):
    """Return the position reflected at the ends of the axis."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return constant(0, position)
    width = constant(span, position)
    away = tirx.abs(position - constant(low, position))
    flips = tirx.floor(away / width)
    extra = away - flips * width
    half = constant(0.5, position)
    odd = flips - constant(2, position) * tirx.floor(flips * half) > half
    return constant(low, position) + tirx.Select(odd, width - extra, extra)


def _moved(position, size, padding_mode, align_corners, image):
    if padding_mode == "reflection":
        position = _mirrored(position, size, align_corners)
    if padding_mode == "zeros":
        return position
    first, last = constant(0, position), constant(size - 1, position)
    if image:  # NaN is the first element
        return tirx.Select(position > first, tirx.min(position, last), first)
    return tirx.max(tirx.min(position, last), first)


def _cubic(t, k):
    """The weight of the element ``k`` behind the base (Keys, 1981)."""
    d = tirx.abs(t - constant(k, t))
    a, one = ALPHA, constant(1, t)
    if k in (0, 1):
        return (constant(a + 2, t) * d - constant(a + 3, t)) * d * d + one
    return ((constant(a, t) * d - constant(5 * a, t)) * d + constant(8 * a, t)) * d - constant(
        4 * a, t
    )


def _taps(coordinate, size, method, padding_mode, align_corners, image):
    """Return (element, weight) of what a sample reads of one axis; outside, the weight is 0.

    At NaN and infinities, it is what torch has on the CPU, which differs for images and volumes.
    """
    one, zero = constant(1, coordinate), constant(0, coordinate)
    scale = constant((size - 1) / 2 if align_corners else size / 2, coordinate)
    position = (coordinate + one) * scale - constant(0 if align_corners else 0.5, coordinate)
    if method != "bicubic":
        position = _moved(position, size, padding_mode, align_corners, image)
    # Elements far outside are all alike; integers have bounds.
    position = tirx.max(tirx.min(position, constant(size + 3, position)), constant(-3, position))
    base = tirx.nearbyint(position) if method == "nearest" else tirx.floor(position)
    t = position - base
    shares = {
        "nearest": lambda: [(0, one)],
        "bilinear": lambda: [(0, one - t), (1, t)],
        "bicubic": lambda: [(k, _cubic(t, k)) for k in (-1, 0, 1, 2)],
    }[method]()
    found = []
    for offset, weight in shares:
        element = base + constant(offset, base)
        if method == "bicubic":
            element = _moved(element, size, padding_mode, align_corners, image)
        inside = tirx.And(element >= zero, element <= constant(size - 1, element))
        clamped = tirx.max(tirx.min(element, constant(size - 1, element)), zero)
        index = tirx.nearbyint(clamped).astype("int32")
        share = tirx.Select(inside, weight, zero)
        if image and (method == "bicubic" or (method == "bilinear" and padding_mode == "zeros")):
            finite = tirx.abs(coordinate) < constant(math.inf, coordinate)
            share = tirx.Select(finite, share, constant(math.nan, coordinate))
        found.append((index, share))
    return found


@compute(op.grid_sample, OPAQUE)
def grid_sample(x, grid, method, padding_mode, align_corners, out):
    wide = computing(out.dtype)
    extents = [int(extent) for extent in x.shape[2:]]
    options = (method, padding_mode, align_corners, len(extents) == 2)

    def element(n, c, *place):
        axes = [
            _taps(cast(grid(n, *place, len(extents) - 1 - axis), wide), size, *options)
            for axis, size in enumerate(extents)
        ]
        total = None
        for taps in product(*axes):
            weight = taps[0][1]
            for _, factor in taps[1:]:
                weight = weight * factor
            value = cast(x(n, c, *(index for index, _ in taps)), wide) * weight
            total = value if total is None else total + value
        return cast(total, out.dtype)

    return te.compute(out.shape, element, name="sampled")
