"""Resizing of images and its gradients, and sampling at positions.

Where a result's extent is the argument's times its scale, which is the rule, it is `resize1d` to
`resize3d`. A scale that gives a broken extent, and filters against aliasing, are products with one
matrix of weights for each axis.
Boxes and regions of images are torchvision's, which need not be installed.
"""

import math

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.operators import next_threshold, suppress_boxes
from meta.grad.core import pullback
from meta.op.core.function import device_of
from meta.op.core.window import DATA
from meta.op.norm import statistics_dtype
from meta.runtime.ndarray import array

MODES = {
    "nearest": ("nearest_neighbor", "asymmetric"),
    "nearest_exact": ("nearest_neighbor", "tf_half_pixel_for_nn"),
    "linear": ("linear", "half_pixel"),
    "cubic": ("cubic", "half_pixel"),
}
"""The method and where samples lie, unless the corners are aligned."""


def _filter(kind, x):
    """Return the weights of a filter, at distances in units of its width."""
    x = np.abs(x)
    if kind == "linear":
        return np.maximum(1.0 - x, 0.0)
    if kind == "cubic":  # Keys, with his own parameter
        near = (1.5 * x - 2.5) * x * x + 1.0
        far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
        return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
    return np.where(x < 3.0, np.sinc(x) * np.sinc(x / 3.0), 0.0)


_REACH = {"linear": 1.0, "cubic": 2.0, "lanczos": 3.0}
"""How far the filters reach."""


def _step(size, out, align_corners, scale):
    """Return how far apart samples are."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale else size / out


def _antialiased(kind, size, out, step):
    """Return the weights [out, size] of samples that are means of all that they stand for."""
    wide = max(step, 1.0)
    weights = np.zeros((out, size))
    for i in range(out):
        centre = step * (i + 0.5)
        first = max(int(centre - _REACH[kind] * wide + 0.5), 0)
        last = min(int(centre + _REACH[kind] * wide + 0.5), size)
        read = _filter(kind, (np.arange(first, last) - centre + 0.5) / wide)
        weights[i, first:last] = read / read.sum() if read.sum() else read
    return weights


def _weights(kind, size, out, align_corners, scale):
    """Return the weights [out, size] of samples that lie on an axis of elements."""
    places, weights = np.arange(out), np.zeros((out, size))
    step = _step(size, out, align_corners, scale)
    at = places * step if align_corners else (places + 0.5) * step - 0.5
    if kind == "linear" and not align_corners:
        at = np.maximum(at, 0.0)
    below = np.floor(at).astype(int)
    t = at - below
    if kind == "linear":
        taps = {0: 1.0 - t, 1: t}
    else:
        a = -0.75
        near = {0: t, 1: 1.0 - t}
        far = {-1: t + 1.0, 2: 2.0 - t}
        taps = {k: ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0 for k, d in near.items()}
        taps |= {k: ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a for k, d in far.items()}
    for tap, weight in taps.items():
        np.add.at(weights, (places, np.clip(below + tap, 0, size - 1)), weight)
    return weights


def _nearest(kind, size, out, scale):
    """Return the element that each sample is."""
    step = np.float32(_step(size, out, False, scale))
    shift = np.float32(0.5 if kind == "nearest_exact" else 0.0)
    places = (np.arange(out, dtype=np.float32) + shift) * step
    return np.minimum(np.floor(places).astype(np.int64), size - 1)


def _follow_from_scales(sizes, outs, scales):
    """Whether the extents follow from the scales, so that these say nothing else."""
    return all(map(_follows, sizes, outs, scales))


def _follows(size, out, scale):
    if not scale or isinstance(size, int):
        return not scale or size * scale == out
    return float(scale).is_integer() and _is_zero(size * int(scale) - out)


def _is_zero(dim):
    return isinstance(dim, int) and dim == 0


def _by_matrices(x, outs, matrix):
    """Return what a matrix for each spatial axis makes of an image."""
    dtype, wide = x.dtype, statistics_dtype(x.dtype)
    x, where = cast(x, wide), device_of(x)
    for axis, out in enumerate(outs, len(x.shape) - len(outs)):
        weights = array(
            matrix(axis - len(x.shape) + len(outs), x.shape[axis], out), wide, device=where
        )
        if axis == len(x.shape) - 1:
            x = op.matmul(x, op.permute_dims(weights, (1, 0)))
        else:
            x = op.swapaxes(
                op.matmul(op.swapaxes(x, axis, -1), op.permute_dims(weights, (1, 0))), axis, -1
            )
    return cast(x, dtype)


def _require_known(x, outs):
    if not all(isinstance(n, int) for n in (*x.shape[2:], *outs)):
        raise Unconvertible("it resizes an axis of an extent that is not known, by a scale")


def _options(kind, outs, align_corners):
    """Return the arguments of `resize2d` and its like behind the image."""
    method, mode = MODES[kind]
    mode = "align_corners" if align_corners else mode
    rounding = "floor" if kind.startswith("nearest") else ""
    return outs, DATA[len(outs)], method, mode, rounding, -0.75


def _resized(x, kind, outs, align_corners, scales):
    """Return an image resized; linear in it."""
    n, outs = len(outs), tuple(outs)
    nearest = kind.startswith("nearest")
    if not nearest and not is_float(x.dtype):
        raise Unconvertible(f"it interpolates {x.dtype}, which torch rounds in its own way")
    if align_corners or _follow_from_scales(x.shape[2:], outs, scales):
        return getattr(op, f"resize{n}d")(x, *_options(kind, outs, align_corners))
    _require_known(x, outs)
    if nearest:
        for i, (size, out, scale) in enumerate(zip(x.shape[2:], outs, scales, strict=True)):
            index = array(_nearest(kind, size, out, scale), "int64", device=device_of(x))
            x = op.take(x, index, i + 2)
        return x
    return _by_matrices(
        x, outs, lambda i, size, out: _weights(kind, size, out, align_corners, scales[i])
    )


def _filtered(x, kind, outs, align_corners, scales):
    _require_known(x, outs)
    if not is_float(x.dtype):
        raise Unconvertible(f"it interpolates {x.dtype}, which torch rounds in its own way")

    def matrix(i, size, out):
        return _antialiased(kind, size, out, _step(size, out, align_corners, scales[i]))

    return _by_matrices(x, tuple(outs), matrix)


def _scales(n, options):
    """Return the scale of each axis, None where there is none."""
    names = {1: ("scales",), 2: ("scales_h", "scales_w")}
    return tuple(options.get(name) for name in names.get(n, ("scales_d", "scales_h", "scales_w")))


def _extents(x, output_size, scale_factors):
    """Return the extents and scales that a call of a ``vec`` overload means."""
    sizes = x.shape[2:]
    if output_size is not None:
        return tuple(output_size), (None,) * len(sizes)
    if not all(isinstance(n, int) for n in sizes):
        if all(float(f).is_integer() for f in scale_factors):
            return tuple(n * int(f) for n, f in zip(sizes, scale_factors, strict=True)), (
                None,
            ) * len(sizes)
        raise Unconvertible("it scales an extent that is not known by a fraction")
    outs = tuple(math.floor(float(n) * f) for n, f in zip(sizes, scale_factors, strict=True))
    return outs, tuple(scale_factors)


def _family(name, n, kind, function, bases):
    """Register the forms of an operator, and its gradient.

    function: of an image, a kind, extents, whether corners are aligned, and scales.
    """
    aligned = () if kind.startswith("nearest") else ("align_corners",)
    scales = {1: ("scales",), 2: ("scales_h", "scales_w")}.get(
        n, ("scales_d", "scales_h", "scales_w")
    )

    @aten(name, *bases, rest=("output_size", *aligned, *scales))
    def resize(x, **options):
        align = options.get("align_corners", False)
        return function(x, kind, options["output_size"], align, _scales(n, options))

    @aten(f"{name}.vec", *bases, rest=("output_size", *aligned, "scale_factors"))
    def resize_vec(x, **options):
        outs, factors = _extents(x, options["output_size"], options["scale_factors"])
        return function(x, kind, outs, options.get("align_corners", False), factors)

    @aten(f"{name}_backward", rest=("output_size", "input_size", *aligned, *scales))
    def resize_backward(dy, **options):
        align, sizes = options.get("align_corners", False), options["input_size"]
        outs, factors = tuple(options["output_size"]), _scales(n, options)
        x = op.zeros(tuple(sizes), dy.dtype, device_of(dy))
        if function is _resized and (align or _follow_from_scales(sizes[2:], outs, factors)):
            return getattr(op, f"resize{n}d_dx")(x, dy, *_options(kind, outs, align))
        return pullback(lambda x: function(x, kind, outs, align, factors), (x,), dy)[0]


_RESIZES = (op.resize1d, op.resize2d, op.resize3d)
for _n, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _base = (_RESIZES[_n - 1],)
    _family(f"upsample_nearest{_n}d", _n, "nearest", _resized, _base)
    _family(f"_upsample_nearest_exact{_n}d", _n, "nearest_exact", _resized, _base)
    _family(f"upsample_{_linear}{_n}d", _n, "linear", _resized, _base)
_family("upsample_bicubic2d", 2, "cubic", _resized, (op.resize2d,))
for _name, _kind in (("bilinear", "linear"), ("bicubic", "cubic"), ("lanczos", "lanczos")):
    _family(f"_upsample_{_name}2d_aa", 2, _kind, _filtered, (op.matmul,))


SAMPLING = ("bilinear", "nearest", "bicubic")
PADDING = ("zeros", "border", "reflection")
"""By torch's numbers of them."""


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", op.grid_sample)
@aten("_grid_sampler_2d_cpu_fallback", op.grid_sample)
def grid_sampler(x, grid, *, interpolation_mode, padding_mode, align_corners):
    method, padding = SAMPLING[interpolation_mode], PADDING[padding_mode]
    return op.grid_sample(x, grid, method, padding, align_corners)


@aten("cudnn_grid_sampler", op.grid_sample)
def cudnn_grid_sampler(x, grid):
    return op.grid_sample(x, grid, "bilinear", "zeros", True)


@aten("grid_sampler_2d_backward", "grid_sampler_3d_backward", op.grid_sample_dx)
def grid_sampler_backward(
    dy, x, grid, *, interpolation_mode, padding_mode, align_corners, output_mask
):
    method, padding = SAMPLING[interpolation_mode], PADDING[padding_mode]
    dx, dgrid = op.grid_sample_dx(x, grid, dy, method, padding, align_corners)
    return tuple(g if wanted else None for g, wanted in zip((dx, dgrid), output_mask, strict=True))


def _positions(theta, size, align_corners):
    """Return the positions [n, .., axes] of the elements of images, moved by matrices."""
    extents = tuple(size)[2:]
    n, where = len(extents), device_of(theta)
    axes = []
    for i, extent in enumerate(extents):
        ends = np.linspace(-1.0, 1.0, extent) if extent > 1 else np.zeros(1)
        ends = ends if align_corners else ends * (extent - 1) / extent
        shape = tuple(extent if j == i else 1 for j in range(n))
        axes.append(np.broadcast_to(ends.reshape(shape), extents))
    base = np.stack([*reversed(axes), np.ones(extents)], -1).reshape(-1, n + 1)
    points = array(base, theta.dtype, device=where)
    moved = op.matmul(points, op.permute_dims(theta, (0, 2, 1)))
    return op.reshape(moved, (theta.shape[0], *extents, n))


@aten("affine_grid_generator", op.matmul)
def affine_grid_generator(theta, *, size, align_corners):
    if not all(isinstance(extent, int) for extent in size[2:]):
        raise Unconvertible("an extent of the images is not known")
    return _positions(theta, size, align_corners)


@aten("affine_grid_generator_backward", op.matmul)
def affine_grid_generator_backward(dy, *, size, align_corners):
    n = len(size) - 2
    theta = op.zeros((size[0], n, n + 1), dy.dtype, device_of(dy))
    return pullback(lambda theta: _positions(theta, size, align_corners), (theta,), dy)[0]


# Operators of torchvision, which need not be installed: boxes and regions of images.


@aten("torchvision.nms", op.non_max_suppression, op.argwhere)
def nms(boxes, scores, *, iou_threshold, call):
    """The places of the boxes that overlap no better one by more than the threshold, best first:
    int64[?].
    """
    if iou_threshold <= 0:
        raise Unconvertible(f"its threshold is {iou_threshold}, at which every overlap counts")
    boxes = op.expand_dims(boxes, 0)
    scores = op.expand_dims(scores, 0)
    everything = op.ones_like(scores, "bool")
    found = suppress_boxes(
        boxes, scores, everything, -1, next_threshold(iou_threshold), call
    ).indices
    row = op.squeeze(found, 0)
    places = op.squeeze(op.argwhere(op.greater_equal(row, 0)), 1)
    return cast(op.take(row, places, 0), "int64")


@aten("torchvision.roi_align", op.roi_align)
def roi_align(x, rois, *, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    size = (pooled_height, pooled_width)
    return op.roi_align(x, rois, size, spatial_scale, sampling_ratio, aligned=aligned)


@aten("torchvision._roi_align_backward", op.roi_align_dx)
def roi_align_backward(
    dy,
    rois,
    *,
    spatial_scale,
    pooled_height,
    pooled_width,
    batch_size,
    channels,
    height,
    width,
    sampling_ratio,
    aligned,
):
    x = op.zeros((batch_size, channels, height, width), dy.dtype, device_of(dy))
    size = (pooled_height, pooled_width)
    return op.roi_align_dx(x, rois, dy, size, spatial_scale, sampling_ratio, aligned=aligned)


aten.refuse(
    "torchvision.roi_pool",
    "torchvision._roi_pool_backward",
    why="it returns the places of maxima, which are not computed here",
)
aten.refuse(
    "torchvision.deform_conv2d",
    "torchvision._deform_conv2d_backward",
    "torchvision.ps_roi_align",
    "torchvision._ps_roi_align_backward",
    "torchvision.ps_roi_pool",
    "torchvision._ps_roi_pool_backward",
    why="there is no such operator here",
)
