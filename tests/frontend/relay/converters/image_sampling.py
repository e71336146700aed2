"""What the converters of `image_sampling.py` have to give; the oracles are torch and loops."""

import numpy as np
import torch

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def place(begin, end, extent, count, k):
    if count == 1:
        return 0.5 * (begin + end) * (extent - 1)
    return begin * (extent - 1) + k * (end - begin) * (extent - 1) / (count - 1)


def crop_and_resize(data, boxes, numbers, size, nearest=False, outside=0.0):
    """One sample after the other; data [N, H, W, C]."""
    _, height, width, channels = data.shape
    y = np.zeros((len(boxes), *size, channels), data.dtype)
    for b, (y1, x1, y2, x2) in enumerate(boxes.astype(np.float64)):
        image = data[numbers[b]]
        for i in range(size[0]):
            for j in range(size[1]):
                v, h = place(y1, y2, height, size[0], i), place(x1, x2, width, size[1], j)
                if not (0 <= v <= height - 1 and 0 <= h <= width - 1):
                    y[b, i, j] = outside
                elif nearest:
                    y[b, i, j] = image[int(np.floor(v + 0.5)), int(np.floor(h + 0.5))]
                else:
                    top, left = int(v), int(h)
                    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
                    fv, fh = v - top, h - left
                    upper = image[top, left] * (1 - fh) + image[top, right] * fh
                    lower = image[bottom, left] * (1 - fh) + image[bottom, right] * fh
                    y[b, i, j] = upper * (1 - fv) + lower * fv
    return y


def first(x):
    return x.transpose(0, 3, 1, 2)


def dilation2d(data, weight, strides=(1, 1), padding=(0, 0, 0, 0), dilations=(1, 1)):
    top, left, bottom, right = padding
    x = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    _, kh, kw = weight.shape
    height = (x.shape[2] - (kh - 1) * dilations[0] - 1) // strides[0] + 1
    width = (x.shape[3] - (kw - 1) * dilations[1] - 1) // strides[1] + 1
    y = np.full((*x.shape[:2], height, width), -np.inf, data.dtype)
    for i in range(height):
        for j in range(width):
            rows = i * strides[0] + np.arange(kh) * dilations[0]
            columns = j * strides[1] + np.arange(kw) * dilations[1]
            window = x[:, :, rows][:, :, :, columns] + weight
            y[:, :, i, j] = window.max((2, 3))
    return y


DATA = floats(2, 5, 4, 3)
BOXES = np.array(
    [[0.1, 0.2, 0.9, 0.7], [0.8, 0.9, 0.1, 0.2], [-0.3, 0.0, 1.2, 1.0], [0.5, 0.5, 0.5, 0.5]],
    np.float32,
)
NUMBERS = np.array([0, 1, 1, 0], np.int32)
THETA = floats(2, 2, 3)
IMAGE, GRID = floats(2, 3, 4, 5), RNG.uniform(-1.3, 1.3, (2, 2, 3, 4)).astype(np.float32)
VOLUME, GRID_3D = floats(1, 2, 3, 4, 5), RNG.uniform(-1.3, 1.3, (1, 3, 2, 3, 2)).astype(np.float32)


def sampled(method, padding, align):
    def run(data, grid):
        places = torch.from_numpy(np.moveaxis(grid, 1, -1).copy())
        return torch.nn.functional.grid_sample(
            torch.from_numpy(data), places, method, padding, align
        )

    return run


CASES = [
    Case(
        "image.crop_and_resize",
        (DATA, BOXES, NUMBERS),
        lambda d, b, n: crop_and_resize(d, b, n, (3, 2)),
        {"crop_size": (3, 2), "layout": "NHWC"},
    ),
    Case(
        "image.crop_and_resize",
        (first(DATA), BOXES, NUMBERS),
        lambda d, b, n: first(crop_and_resize(DATA, b, n, (2, 1), True, 0.25)),
        {"crop_size": (2, 1), "method": "nearest_neighbor", "extrapolation_value": 0.25},
    ),
    Case(
        "image.crop_and_resize",
        (DATA, BOXES, NUMBERS),
        attrs={"crop_size": (2, 1), "layout": "NHWC", "method": "cubic"},
        refused="'cubic' is not known",
    ),
    Case(
        "image.affine_grid",
        (THETA,),
        lambda t: torch.nn.functional.affine_grid(
            torch.from_numpy(t), (2, 1, 3, 4), align_corners=True
        ).permute(0, 3, 1, 2),
        {"target_shape": (3, 4)},
    ),
    Case("image.affine_grid", (THETA,), attrs={"target_shape": (1, 4)}, refused="two positions"),
    Case("image.grid_sample", (IMAGE, GRID), sampled("bilinear", "zeros", True)),
    Case(
        "image.grid_sample",
        (IMAGE, GRID),
        sampled("bicubic", "border", False),
        {"method": "bicubic", "padding_mode": "border", "align_corners": False},
    ),
    Case(
        "image.grid_sample",
        (VOLUME, GRID_3D),
        sampled("nearest", "reflection", True),
        {"method": "nearest", "padding_mode": "reflection", "layout": "NCDHW"},
    ),
    Case("image.grid_sample", (IMAGE, GRID), attrs={"layout": "NHWC"}, refused="NHWC"),
    Case(
        "image.dilation2d",
        (IMAGE, floats(3, 2, 3)),
        lambda d, w: dilation2d(d, w, (2, 1), (1, 0, 2, 1), (1, 2)),
        {"strides": (2, 1), "padding": (1, 0, 2, 1), "dilations": (1, 2)},
    ),
    Case(
        "image.dilation2d",
        (IMAGE, floats(3, 2, 3)),
        lambda d, w: dilation2d(d, w, (2, 2), (1, 1, 1, 1)),
        {"strides": (2,), "padding": (1,)},
    ),
    Case(
        "image.dilation2d",
        (DATA, floats(2, 2, 3)),
        lambda d, w: dilation2d(first(d), w.transpose(2, 0, 1)).transpose(0, 2, 3, 1),
        {"data_layout": "NHWC", "kernel_layout": "HWI"},
    ),
]
