"""Test records of pooling of regions of interest."""

import dataclasses
import math

import torch

from meta.testing import C, F, OpCase, error, sample

NAN, INF = float("nan"), float("inf")


def _interpolated(image, y, x):
    """Return the channels of an image [C, H, W] at a position, 0 outside."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros_like(image[:, 0, 0])
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = image[:, top, left] * (1 + left - x) + image[:, top, right] * (x - left)
    lower = image[:, bottom, left] * (1 + left - x) + image[:, bottom, right] * (x - left)
    return upper * (1 + top - y) + lower * (y - top)


def _bin(image, chooser, begin, size, samples, mode):
    """Return the pooled channels of one bin; begin, size and samples are pairs (y, x)."""
    places = [
        (begin[0] + (i + 0.5) * size[0] / samples[0], begin[1] + (j + 0.5) * size[1] / samples[1])
        for i in range(samples[0])
        for j in range(samples[1])
    ]
    if not places:
        return torch.zeros_like(image[:, 0, 0])
    values = torch.stack([_interpolated(image, *place) for place in places])
    if mode == "avg":
        return values.mean(0)
    keys = torch.stack([_interpolated(chooser, *place) for place in places])
    return values.gather(0, keys.argmax(0, keepdim=True))[0]


def roi_align_ddy(
    data,
    rois,
    ddx,
    pooled_size,
    spatial_scale,
    sample_ratio=-1,
    layout="NCHW",
    mode="avg",
    aligned=False,
):
    if layout == "NHWC":
        data, ddx = data.permute(0, 3, 1, 2), ddx.permute(0, 3, 1, 2)
    bins = pooled_size if isinstance(pooled_size, tuple) else (pooled_size, pooled_size)
    y = ddx.new_zeros(len(rois), data.shape[1], *bins)
    rows = []
    for number, *corners in rois.tolist():
        if not 0 <= number < len(data):
            rows.append(torch.zeros_like(y[0]))
            continue
        offset, least = (0.5, -INF) if aligned else (0.0, 1.0)
        x1, y1, x2, y2 = (corner * spatial_scale - offset for corner in corners)
        size = max(y2 - y1, least) / bins[0], max(x2 - x1, least) / bins[1]
        samples = [sample_ratio if sample_ratio > 0 else max(math.ceil(s), 0) for s in size]
        pooled = [
            _bin(
                ddx[int(number)], data[int(number)].detach(),
                (y1 + p * size[0], x1 + q * size[1]), size, samples, mode,
            )
            for p in range(bins[0])
            for q in range(bins[1])
        ]  # fmt: skip
        rows.append(torch.stack(pooled, 1).unflatten(1, bins))
    # Where nothing is read there still is a gradient: zeros.
    y = (torch.stack(rows) if rows else y) + ddx.flatten()[:0].sum()
    return y.permute(0, 2, 3, 1) if layout == "NHWC" else y


def roi_align(data, rois, *options, **named):
    return roi_align_ddy(data, rois, data, *options, **named)


def roi_align_dx(data, rois, dy, *options, **named):
    """torch's gradient of the oracle above, which is linear in ``ddx``."""
    x = torch.zeros_like(data).requires_grad_()
    y = roi_align_ddy(data.detach(), rois.detach(), x, *options, **named)
    return torch.autograd.grad(y, x, dy, create_graph=True)[0] + 0 * dy.sum()


# Inside, over the edges, far outside, less than 1 wide with its corners swapped, of no image.
ROIS = C(
    [
        [0.0, 0.5, 1.0, 5.25, 6.5],
        [1.0, -3.0, 2.0, 9.75, 12.0],
        [1.0, 20.0, 20.0, 30.0, 26.0],
        [0.0, 4.0, 3.0, 3.5, 3.25],
        [-2.0, 0.0, 0.0, 4.0, 4.0],
        [-1.0, 0.0, 0.0, 4.0, 4.0],
    ]
)

ONE = C([[0.0, 1.0, 0.5, 4.75, 3.5]])

NONE = F(0, 5)

OPTIONS = [
    ((2, 3), 1.0, 2),
    (2, 0.5, -1),
    ((1, 2), 1.0, 0, "NCHW", "max"),
    (2, 1.0, 3, "NCHW", "max"),
    ((2, 3), 1.0, 2, "NCHW", "avg", True),
    (2, 0.5, -1, "NCHW", "avg", True),
    ((1, 2), 1.0, 0, "NCHW", "max", True),
]

LAST = ((3, 2), 0.75, -1, "NHWC")

CALLS = [
    *((F(2, 3, 5, 6), ROIS, (2, 3, 6), options) for options in OPTIONS),
    (F(2, 5, 6, 3), ROIS, (2, 3, 6), LAST),
    (F(2, 5, 6, 3), ROIS, (2, 3, 6), (*LAST, "max")),
    (F(1, 1, 1, 1), ONE, (1, 1, 1), (1, 1.0)),
    (F(1, 2, 4, 4), NONE, (1, 2, 0), (2, 1.0)),
    (F(1, 2, 4, 4), NONE, (1, 2, 0), (2, 1.0, 1, "NCHW", "max")),
    (F(1, 0, 4, 4), ONE, (1, 0, 1), (2, 1.0)),
    (F(0, 2, 4, 4), C([[-1.0, 1.0, 0.5, 4.75, 3.5]]), (0, 2, 1), (2, 1.0)),
]


def _dy(call):
    """Return the gradient of the result of a call."""
    _, _, (_, channels, regions), options = call
    size = options[0] if isinstance(options[0], tuple) else (options[0],) * 2
    if options[3:4] == ("NHWC",):
        return F(regions, *size, channels)
    return F(regions, channels, *size)


ODD = [
    sample(
        C([[[[INF, 1.0, 2.0], [NAN, 3.0, 4.0], [5.0, -INF, 7.0]]]]),
        C([[0.0, 0.0, 0.0, 3.0, 3.0], [0.0, 1.25, 0.25, 2.5, 1.5]]), 2, 1.0, 2, "NCHW", mode,
    )
    for mode in ("avg", "max")
]  # fmt: skip

# No kink is near: dy and x may be varied.
WITHIN = dataclasses.replace(C([[0.0, 0.25, 0.5, 1.75, 1.5]]), given=False)

CASES = [
    OpCase(
        "roi_align",
        samples=[sample(x, rois, *options) for x, rois, _, options in CALLS] + ODD,
        oracle=roi_align,
        errors=[
            error(F(1, 2, 4, 4), ONE, 2, 1.0, mode="min", match="unknown mode"),
            error(F(1, 2, 4, 4), ONE, 2, 1.0, layout="CHWN", match="unknown layout"),
            error(F(1, 2, 4, 4), ONE, (2, 0), 1.0, match="pooled_size"),
            error(F(1, 2, 0, 4), ONE, 2, 1.0, match="empty height"),
            error(F(1, 2, 4, 4), F(3, 4), 2, 1.0, match="rois do not fit"),
        ],
    ),
    OpCase(
        "roi_align_dx",
        samples=[sample(call[0], call[1], _dy(call), *call[3]) for call in CALLS]
        + [sample(F(1, 1, 3, 3), WITHIN, F(1, 1, 2, 2), 2, 1.0)],
        oracle=roi_align_dx,
    ),
    OpCase(
        "roi_align_ddy",
        samples=[sample(x, rois, x, *options) for x, rois, _, options in CALLS],
        oracle=roi_align_ddy,
    ),
]


def _max_bin(begin, end, bins, part, extent):
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
            top, bottom = _max_bin(y1, y2, height, p, images.shape[2])
            for q in range(width):
                left, right = _max_bin(x1, x2, width, q, images.shape[3])
                part = images[int(number), :, top:bottom, left:right].flatten(1)
                if part.shape[1]:
                    y[r, :, p, q] = part.amax(1)
    return y.permute(0, 2, 3, 1) if layout == "NHWC" else y


# Inside, over the edges, outside, with its corners swapped, of no image.
MAX_ROIS = C(
    [
        [0.0, 0.5, 1.0, 5.25, 6.5],
        [1.0, -3.0, 2.0, 9.75, 12.0],
        [1.0, 20.0, 20.0, 30.0, 26.0],
        [0.0, 4.0, 3.0, 3.5, 1.25],
        [-2.0, 0.0, 0.0, 4.0, 4.0],
        [-1.0, 0.0, 0.0, 4.0, 4.0],
    ]
)

CASES += [
    OpCase(
        "roi_pool",
        [
            sample(F(2, 3, 5, 6), MAX_ROIS, (2, 3), 1.0),
            sample(F(2, 3, 5, 6), MAX_ROIS, 2, 0.5),
            sample(F(2, 5, 6, 3), MAX_ROIS, (4, 3), 0.75, "NHWC"),
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
