"""Exporters of convolutions, pooling, resizing and sampling of images."""

from __future__ import annotations

import numpy as np
import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.base.registry import OPERATORS
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.export.registry import cast, exports
from meta.frontend.onnx.exporters.shapes import static
from meta.op.core.check import pair
from meta.op.core.resample import upsampled
from meta.op.core.window import (
    DATA,
    KERNEL,
    TRANSPOSED_KERNEL,
    layout_permutation,
    pads,
    window,
)


def images(base, n, form, wide=False):
    """Register what writes images with their channels first, for all layouts."""
    places = [base.schema.index[name] for name in ("layout", "out_layout")
              if name in base.schema.index]  # fmt: skip

    def in_layouts(g, x, *args):
        orders = [layout_permutation(args[i - 1], DATA[n], "layout") for i in places]
        order, back = orders[0], np.argsort(orders[-1]).tolist()
        g.result = g.result.with_shape(tuple(g.result.shape[i] for i in orders[-1]))
        rest = [a for i, a in enumerate(args, 1) if i not in places]
        y = form(g, op.permute_dims(x, order) if order != tuple(range(x.ndim)) else x, *rest)
        return op.permute_dims(y, tuple(back)) if back != list(range(x.ndim)) else y

    exports(base, wide=wide)(in_layouts)


def _convolution(n, operator, kernel):
    def form(g, x, w, stride, padding, *options):
        *more, dilation, groups, kernel_layout = options
        order = layout_permutation(kernel_layout, kernel, "layout")
        w = op.permute_dims(w, order) if kernel_layout != kernel else w
        extra = {"output_padding": pair(more[0], "output_padding", n)} if more else {}
        return g.node(
            operator, x, w, group=groups, kernel_shape=list(w.shape[2:]), pads=pads(padding, n),
            strides=pair(stride, "stride", n), dilations=pair(dilation, "dilation", n), **extra,
        )  # fmt: skip

    return form


def _pool(n, operator):
    def form(g, x, kernel, stride, padding, dilation, ceil_mode, include_pad):
        highest = operator == "MaxPool"
        taps = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
        options = {"kernel_shape": [t.kernel for t in taps], "strides": [t.stride for t in taps],
                   "dilations": [t.dilation for t in taps]}  # fmt: skip
        if not ceil_mode:
            count = None if highest else int(include_pad)
            return g.node(operator, x, pads=pads(padding, n), count_include_pad=count, **options)
        # The last windows, which end behind the input, are those of an input that is longer.
        static(x, "windows that end behind the input")
        more = [max((t.out - 1) * t.stride + t.extent - t.size - t.before, 0) for t in taps]
        pairs = [(0, 0), (0, 0), *((t.before, m) for t, m in zip(taps, more, strict=True))]
        longer = op.pad(x, pairs, "constant", float("-inf") if highest else 0.0)
        y = g.node(operator, longer, **options)
        if highest:
            return y
        share = torch.from_numpy(_shares(taps, include_pad)[None, None])
        return y * g.constant(share.to(TO_TORCH[y.dtype]))

    return form


def _shares(taps, include_pad):
    """Return by how much the mean of each window is larger than that of all its places."""
    factor = np.ones(())
    for t in taps:
        starts = np.arange(t.out)[:, None] * t.stride - t.before
        places = starts + np.arange(t.kernel) * t.dilation
        low, high = (-t.before, t.size + t.after) if include_pad else (0, t.size)
        counted = ((places >= low) & (places < high)).sum(1)
        factor = factor[..., None] * (t.kernel / counted)
    return factor


def _adaptive(n, highest):
    def form(g, x, shape):
        for axis, count in enumerate(pair(shape, "shape", n), 2):
            x = _regions(x, axis, count, highest)
        return x

    return form


def _regions(x, axis, count, highest):
    """Reduce ``count`` regions of an axis, which cover it evenly."""
    reduce = op.max if highest else op.mean
    if count == 1:
        return reduce(x, axis, True)
    extent = x.shape[axis]
    if not isinstance(extent, int):
        raise Unconvertible("regions of an axis whose extent is not known")
    if extent == count:
        return x
    if count and extent % count == 0:
        parts = (*x.shape[:axis], count, extent // count, *x.shape[axis + 1 :])
        return reduce(op.reshape(x, parts), axis + 1, False)
    bounds = [(i * extent // count, -((i + 1) * extent // -count)) for i in range(count)]
    full = (slice(None),) * axis
    parts = [reduce(x[(*full, slice(a, b))], axis, True) for a, b in bounds]
    return op.concat(tuple(parts), axis) if parts else x[(*full, slice(0, 0))]


def _blocks(base, x, block, mode):
    if base is op.space_to_depth and mode != "DCR":
        raise Unconvertible(f"ONNX's blocks have no order {mode!r}")
    return base(x, block, "NCHW", mode)


def _resize(g, x, size, method, mode, rounding, alpha, exclude, out_dtype):
    nearest = method == "nearest_neighbor"
    rounding = rounding or ("round" if mode == "align_corners" else "floor")
    rounding = "round_prefer_ceil" if rounding == "round" else rounding
    if mode == "tf_half_pixel_for_nn":
        if not nearest or rounding != "floor":
            raise Unconvertible(f"the coordinates {mode!r} with {method}, {rounding}")
        mode, rounding = "half_pixel", "round_prefer_ceil"  # which is half an element less
    y = g.node(
        "Resize", x, None, None, g.extents(g.result.shape), type=g.result.with_dtype(x.dtype),
        mode="nearest" if nearest else method, coordinate_transformation_mode=mode,
        nearest_mode=rounding if nearest else None, exclude_outside=int(exclude != 0),
        cubic_coeff_a=float(alpha),
    )  # fmt: skip
    return cast(y, g.result.dtype)


def _roi_align(g, data, rois, size, spatial_scale, ratio, mode, aligned):
    """ONNX's maximum is that of weighted elements, not of samples."""
    if mode != "avg":
        raise Unconvertible("the greatest sample of a bin: ONNX takes that of weighted elements")
    height, width = pair(size, "pooled_size", 2)
    numbers, boxes = op.split(rois, (1,), 1)
    numbers = op.squeeze(numbers, (1,))
    none = op.reshape(op.less(numbers, 0.0), (-1, 1, 1, 1))
    y = g.node(
        "RoiAlign", data, boxes, op.astype(op.maximum(numbers, 0.0), "int64"), mode=mode,
        output_height=height, output_width=width, sampling_ratio=max(ratio, 0),
        spatial_scale=float(spatial_scale),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
    return op.where(none, 0.0, y)


def _upsampling(_, x, scale_h, scale_w, method, align_corners):
    scales = scale_h, scale_w
    size, method, mode = upsampled(static(x, "images")[2:], scales, method, align_corners)
    return op.resize2d(x, size, "NCHW", method, mode)


SAMPLING = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


@exports(op.grid_sample, wide=True)
def grid_sample(g, x, grid, mode, padding_mode, align_corners):
    return g.node("GridSample", x, grid, mode=SAMPLING[mode], padding_mode=padding_mode,
                  align_corners=int(align_corners))  # fmt: skip


for _n in DATA:
    images(OPERATORS[f"conv{_n}d"], _n, _convolution(_n, "Conv", KERNEL[_n]))
    transposed = _convolution(_n, "ConvTranspose", TRANSPOSED_KERNEL[_n])
    images(OPERATORS[f"conv_transpose{_n}d"], _n, transposed)
    images(OPERATORS[f"max_pool{_n}d"], _n, _pool(_n, "MaxPool"))
    images(OPERATORS[f"avg_pool{_n}d"], _n, _pool(_n, "AveragePool"), wide=True)
    images(OPERATORS[f"adaptive_max_pool{_n}d"], _n, _adaptive(_n, True))
    images(OPERATORS[f"adaptive_avg_pool{_n}d"], _n, _adaptive(_n, False), wide=True)
    images(OPERATORS[f"resize{_n}d"], _n, _resize, wide=True)
images(op.upsampling, 2, _upsampling)
images(op.roi_align, 2, _roi_align, wide=True)
for _base in (op.depth_to_space, op.space_to_depth):
    images(_base, 2, lambda g, x, block, mode, _base=_base: _blocks(_base, x, block, mode))
