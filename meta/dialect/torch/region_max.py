"""Maxima over regions of interest on ATen: the rows of a bin first, then its columns."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.op.core.check import pair


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
