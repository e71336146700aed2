"""What the operators of `meta/op/region_max.py` have to do; the oracle is a loop over bins."""

import math

from meta.testing import C, F, OpCase, error, sample


def _bin(begin, end, bins, part, extent):
    """Return the first element of a bin and the one behind its last."""
    first, last = math.floor(begin + 0.5), math.floor(end + 0.5)
    size = max(last - first + 1, 1) / bins
    ends = math.floor(part * size) + first, math.ceil((part + 1) * size) + first
    return [min(max(e, 0), extent) for e in ends]


def roi_pool(data, rois, pooled_size, spatial_scale, layout="NCHW"):
    images = data.permute(0, 3, 1, 2) if layout == "NHWC" else data
    height, width = pooled_size if isinstance(pooled_size, tuple) else (pooled_size, pooled_size)
    y = images.new_zeros(len(rois), images.shape[1], height, width)
    for r, (number, *corners) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (corner * spatial_scale for corner in corners)
        for p in range(height if 0 <= number < len(images) else 0):
            top, bottom = _bin(y1, y2, height, p, images.shape[2])
            for q in range(width):
                left, right = _bin(x1, x2, width, q, images.shape[3])
                part = images[int(number), :, top:bottom, left:right].flatten(1)
                if part.shape[1]:
                    y[r, :, p, q] = part.amax(1)
    return y.permute(0, 2, 3, 1) if layout == "NHWC" else y


# Inside, over the edges, outside, with its corners swapped, of no image.
ROIS = C(
    [
        [0.0, 0.5, 1.0, 5.25, 6.5],
        [1.0, -3.0, 2.0, 9.75, 12.0],
        [1.0, 20.0, 20.0, 30.0, 26.0],
        [0.0, 4.0, 3.0, 3.5, 1.25],
        [-2.0, 0.0, 0.0, 4.0, 4.0],
        [-1.0, 0.0, 0.0, 4.0, 4.0],
    ]
)
NAN, INF = float("nan"), float("inf")

CASES = [
    OpCase(
        "roi_pool",
        [
            sample(F(2, 3, 5, 6), ROIS, (2, 3), 1.0),
            sample(F(2, 3, 5, 6), ROIS, 2, 0.5),
            sample(F(2, 5, 6, 3), ROIS, (4, 3), 0.75, "NHWC"),
            sample(F(1, 2, 4, 4), F(0, 5), 2, 1.0),
            sample(F(0, 2, 4, 4), C([[-1.0, 1.0, 0.5, 4.75, 3.5]]), 2, 1.0),
            sample(C([[[[NAN, -INF], [INF, 2.0]]]]), C([[0.0, 0.0, 0.0, 1.0, 1.0]]), 2, 1.0),
            sample(C([[[[NAN, -INF], [INF, 2.0]]]]), C([[0.0, 0.0, 0.0, 1.0, 1.0]]), 1, 1.0),
        ],
        roi_pool,
        grad=False,
        errors=[
            error(F(1, 2, 4, 4), F(1, 4), 2, 1.0, match="rois do not fit"),
            error(F(1, 2, 4, 4), F(1, 5), 0, 1.0, match="must be positive"),
            error(F(1, 2, 4, 4), F(1, 5), 2, 0.0, match="spatial_scale"),
            error(F(1, 2, 4, 4), F(1, 5), 2, 1.0, "HWCN", match="unknown layout"),
        ],
    ),
]
