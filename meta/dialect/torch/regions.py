"""Pooling of regions of interest on ATen.

Samples have the axes [regions, rows of bins, samples, columns of bins, samples, channels].
"""

from dataclasses import dataclass

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened
from meta.op.core.check import pair
from meta.op.regions import MOST_SAMPLES


@dataclass
class AxisSamples:
    """Where the samples of one axis lie: [regions, bins, samples].

    ``valid``: which there are; ``inside``: which of them lie in the image; ``taps``: the two
    elements around each, with weights. ``count``: samples of a bin, [regions].
    """

    valid: torch.Tensor
    inside: torch.Tensor
    taps: list[tuple[torch.Tensor, torch.Tensor]]
    count: torch.Tensor


def _axis(begin, end, bins, extent, sample_ratio, aligned):
    if aligned:
        begin, end = begin - 0.5, end - 0.5
    length = end - begin
    size = (length if aligned else torch.where(length > 1, length, 1)) / bins
    if sample_ratio > 0:
        count = torch.full_like(begin, sample_ratio)
    else:
        count = size.ceil().clamp(0, MOST_SAMPLES)
    number = torch.arange(max(int(count.max()), 1), device=begin.device)
    valid = (number < count[:, None])[:, None].expand(-1, bins, -1)
    steps = (number + 0.5) * (size / count)[:, None]
    starts = begin[:, None] + torch.arange(bins, device=begin.device) * size[:, None]
    position = starts[:, :, None] + steps[:, None]
    inside = valid & (position >= -1) & (position <= extent)
    position = position.where(inside, 0).clamp(0, extent - 1)
    low = position.floor()
    high = (low + 1).clamp(max=extent - 1)
    weight = position - low
    return AxisSamples(valid, inside, [(low.long(), 1 - weight), (high.long(), weight)], count)


class Samples:
    """The samples of a call of `roi_align`, for data of a shape [images, height, width, channels].

    ``taps``: indices into the elements of all images, with weights, both without channels.
    """

    def __init__(self, shape, rois, pooled_size, spatial_scale, sample_ratio, aligned):
        images, height, width, _ = shape
        self.images_shape = shape
        x1, y1, x2, y2 = (rois[:, 1:] * spatial_scale).unbind(1)
        bins = pair(pooled_size, "pooled_size")
        vertical = _axis(y1, y2, bins[0], height, sample_ratio, aligned)
        horizontal = _axis(x1, x2, bins[1], width, sample_ratio, aligned)
        image = rois[:, 0]
        exists = (image >= 0) & (image < images)
        base = image.where(exists, 0).long() * height
        self.valid = _crossed(vertical.valid, horizontal.valid, torch.logical_and)
        self.inside = _crossed(vertical.inside, horizontal.inside, torch.logical_and)
        self.inside = self.inside & _per_region(exists)
        self.count = _per_region((vertical.count * horizontal.count).clamp(min=1))
        self.taps = [
            (_crossed((base[:, None, None] + y) * width, x, torch.add), _crossed(wy, wx, torch.mul))
            for y, wy in vertical.taps
            for x, wx in horizontal.taps
        ]

    def read(self, images):
        """Return the value of every sample; 0 of one outside of the image."""
        elements = images.flatten(0, 2)
        total = sum(elements[index] * weight[..., None] for index, weight in self.taps)
        return total.where(self.inside[..., None], 0)

    def shares(self, chooser):
        """Return the weight of every sample in its bin: of "avg", or of "max" of ``chooser``."""
        if chooser is None:
            return (self.valid / self.count)[..., None]
        keys = self.read(chooser).where(self.valid[..., None], -torch.inf)
        flat = keys.transpose(2, 3).flatten(3, 4)
        # Where all are minus infinity, the first one: it is valid.
        best = torch.zeros_like(flat).scatter_(3, flat.argmax(3, keepdim=True), 1)
        return best.unflatten(3, (keys.shape[2], keys.shape[4])).transpose(2, 3)

    def spread(self, gradients):
        """Return the gradient of the images by that of the samples, [..., channels]."""
        channels = self.images_shape[-1]
        dx = gradients.new_zeros(self.images_shape).flatten(0, 2)
        gradients = gradients.where(self.inside[..., None], 0)
        for index, weight in self.taps:
            part = (gradients * weight[..., None]).reshape(-1, channels)
            dx.index_add_(0, index.reshape(-1), part)
        return dx.view(self.images_shape)


def _crossed(rows, columns, function):
    return function(rows[:, :, :, None, None], columns[:, None, None])


def _per_region(values):
    return values[:, None, None, None, None]


def _channels_last(x, layout):
    x = widened(x)
    return x.permute(0, 2, 3, 1) if layout == "NCHW" else x


def _result(x, dtype, layout):
    x = x.permute(0, 3, 1, 2) if layout == "NCHW" else x
    return x.to(dtype).contiguous()


@dialect.kernel(op.roi_align_ddy)
def roi_align_ddy(data, rois, ddx, pooled_size, spatial_scale, sample_ratio, layout, mode, aligned):
    """Return the mean of the samples of ddx in every bin, or the one that is greatest in data."""
    source = _channels_last(ddx, layout)
    if source.numel() == 0 or len(rois) == 0:
        shape = (len(rois), *pair(pooled_size, "pooled_size"), source.shape[3])
        return _result(source.new_zeros(shape), ddx.dtype, layout)
    how = pooled_size, spatial_scale, sample_ratio, aligned
    samples = Samples(source.shape, widened(rois), *how)
    shares = samples.shares(_channels_last(data, layout) if mode == "max" else None)
    # Not a product alone: what is not chosen may be infinite.
    chosen = torch.where(shares > 0, samples.read(source) * shares, 0)
    return _result(chosen.sum((2, 4)), ddx.dtype, layout)


@dialect.kernel(op.roi_align)
def roi_align(data, rois, pooled_size, spatial_scale, sample_ratio, layout, mode, aligned):
    how = pooled_size, spatial_scale, sample_ratio, layout, mode, aligned
    return roi_align_ddy(data, rois, data, *how)


@dialect.kernel(op.roi_align_dx)
def roi_align_dx(data, rois, dy, pooled_size, spatial_scale, sample_ratio, layout, mode, aligned):
    images = _channels_last(data, layout)
    if data.numel() == 0 or len(rois) == 0:
        return data.new_zeros(data.shape)
    how = pooled_size, spatial_scale, sample_ratio, aligned
    samples = Samples(images.shape, widened(rois), *how)
    shares = samples.shares(images if mode == "max" else None)
    gradients = _channels_last(dy, layout)[:, :, None, :, None]
    dx = samples.spread(torch.where(shares > 0, gradients * shares, 0))
    return _result(dx, data.dtype, layout)


def _bins(begin, end, bins, extent):
    """Return which elements of an axis belong to which bin: [regions, bins, extent]."""
    first, last = ((x + 0.5).floor() for x in (begin, end))
    size = ((last - first + 1).clamp(min=1) / bins)[:, None]
    number = torch.arange(bins, device=begin.device, dtype=begin.dtype)
    low = (number * size).floor() + first[:, None]
    high = ((number + 1) * size).ceil() + first[:, None]
    element = torch.arange(extent, device=begin.device, dtype=begin.dtype)
    return (element >= low[..., None]) & (element < high[..., None])


@dialect.kernel(op.roi_pool)
def roi_pool(data, rois, pooled_size, spatial_scale, layout):
    wide = torch.promote_types(data.dtype, torch.float32)
    images = (data.permute(0, 3, 1, 2) if layout == "NHWC" else data).to(wide)
    number, *corners = rois.to(wide).unbind(1)
    x1, y1, x2, y2 = (corner * spatial_scale for corner in corners)
    height, width = pair(pooled_size, "pooled_size")
    exists = (number >= 0) & (number < len(images))
    rows = _bins(y1, y2, height, images.shape[2]) & exists[:, None, None]
    columns = _bins(x1, x2, width, images.shape[3])
    result = images.new_zeros(len(rois), images.shape[1], height, width)
    if result.numel() and images.numel():
        lowest = float("-inf")
        own = images[number.where(exists, 0).long()]
        for p in range(height):
            high = own.masked_fill(~rows[:, None, p, :, None], lowest).amax(2)
            for q in range(width):
                result[:, :, p, q] = high.masked_fill(~columns[:, None, q], lowest).amax(2)
        empty = ~(rows.any(2)[:, :, None] & columns.any(2)[:, None])
        result = result.masked_fill(empty[:, None], 0)
    result = result.to(data.dtype)
    return result.permute(0, 2, 3, 1).contiguous() if layout == "NHWC" else result
