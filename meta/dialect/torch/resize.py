"""Resizing and sampling of images on ATen.

ATen's own interpolation has three of the coordinate modes and another arithmetic; this one reads
the same elements as every dialect. The kernels serve any number of spatial axes.
"""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened
from meta.op.core.check import pair
from meta.op.core.resample import sampling, upsampled
from meta.op.resize import PADDING_MODES, SAMPLING_MODES


def taps(s, like, axis):
    """Return what the samples of an axis read: pairs of elements and weights (None: 1)."""
    o = torch.arange(s.out, device=like.device)
    base = s.base(o)
    found = [(base + tap).clamp(0, s.size - 1) for tap in s.taps]
    if len(s.taps) == 1:
        return [(found[0], None)]
    weights = s.weights(s.numerator(o).double() / s.d)
    if s.exclude and len(s.taps) == 4:
        inside = [(base + tap >= 0) & (base + tap < s.size) for tap in s.taps]
        weights = [torch.where(i, w, 0.0) for i, w in zip(inside, weights, strict=True)]
        total = sum(weights)
        weights = [w / total for w in weights]
    shape = [-1 if a == axis else 1 for a in range(like.ndim)]
    return [(i, w.to(like.dtype).reshape(shape)) for i, w in zip(found, weights, strict=True)]


def samplings(shape, size, layout, *options):
    """Return (axis, sampling) of each spatial axis."""
    axes = [layout.index(letter) for letter in "DHW" if letter in layout]
    extents = pair(size, "size", len(axes))
    return [(a, sampling(shape[a], n, *options)) for a, n in zip(axes, extents, strict=True)]


def forward(x, axes, dtype):
    y = widened(x) if x.is_floating_point() else x
    for axis, s in axes:
        parts = []
        for i, w in taps(s, y, axis):
            part = y.index_select(axis, i)
            parts.append(part if w is None else part * w)
        y = sum(parts[1:], parts[0])
    return y.to(dtype).contiguous()


def options(call):
    """Return the attributes of a resize from its layout on, as `samplings` takes them."""
    a = call.args
    how = a.coordinate_transformation_mode, a.rounding_method, a.cubic_alpha, a.cubic_exclude
    return a.layout, a.method, *how


@dialect.kernel(op.resize1d)
@dialect.kernel(op.resize2d)
@dialect.kernel(op.resize3d)
def resize(x, size, call):
    return forward(x, samplings(x.shape, size, *options(call)), TO_TORCH[call.out.dtype])


@dialect.kernel(op.resize1d_dx)
@dialect.kernel(op.resize2d_dx)
@dialect.kernel(op.resize3d_dx)
def resize_dx(x, dy, size, call):
    dx = widened(dy)
    for axis, s in samplings(x.shape, size, *options(call)):
        shape = [s.size if a == axis else n for a, n in enumerate(dx.shape)]
        spread = dx.new_zeros(shape)
        for i, w in taps(s, dx, axis):
            spread.index_add_(axis, i, dx if w is None else dx * w)
        dx = spread
    return dx.to(x.dtype)


@dialect.kernel(op.upsampling)
def upsampling(x, scale_h, scale_w, layout, method, align_corners):
    sizes = tuple(x.shape[layout.index(letter)] for letter in "HW")
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    return forward(x, samplings(x.shape, size, layout, method, mode), x.dtype)


# On the CPU alone: on CUDA ATen reads other elements at positions that are NaN or infinite.
@dialect.kernel(
    op.grid_sample,
    plevel=LIBRARY,
    when=lambda call: None if call.device.kind == "cpu" else "ATen differs at NaN on CUDA",
)
def grid_sample(x, grid, mode, padding_mode, align_corners):
    image, places = widened(x, grid)
    sample = torch.nn.functional.grid_sample
    return sample(image, places, mode, padding_mode, align_corners).to(x.dtype)


@dialect.kernel(op.grid_sample_dx)
def grid_sample_dx(x, grid, dy, mode, padding_mode, align_corners):
    aten = torch.ops.aten
    backward = aten.grid_sampler_2d_backward if x.ndim == 4 else aten.grid_sampler_3d_backward
    how = SAMPLING_MODES.index(mode), PADDING_MODES.index(padding_mode), align_corners
    dx, dgrid = backward(*widened(dy, x, grid), *how, [True, True])
    return dx.to(x.dtype), dgrid.to(x.dtype)
