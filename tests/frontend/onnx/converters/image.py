"""Cases of operators that read images at positions, and of object detection."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 3, 6, 7)
GRID = data(2, 4, 5, 2, low=-1.3, high=1.3)
VOLUME, PLACES = data(1, 2, 3, 4, 3), data(1, 2, 3, 2, 3, low=-1.2, high=1.2)
ROIS = np.float32([[0.5, 0.5, 5.0, 4.0], [1.0, 2.0, 6.5, 5.5], [2.0, 2.0, 2.3, 2.4]])
IMAGES = np.array([0, 1, 0])
BOXES = np.float32(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]]]
)
SCORES = np.float32([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.1, 0.75, 0.8, 0.3, 0.5]]])


def numbers(most: int, overlap: float, threshold: float) -> tuple[np.ndarray, ...]:
    return np.array([most]), np.float32([overlap]), np.float32([threshold])


CASES: list[OnnxCase] = [
    *(
        c
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        for c in calls(
            "GridSample",
            X,
            GRID,
            opsets=(20, 22),
            mode=mode,
            padding_mode=padding,
            align_corners=1,
            tolerance=1e-4,
        )
    ),
    *(
        c
        for mode in ("bilinear", "bicubic")
        for c in calls(
            "GridSample",
            X,
            GRID,
            opsets=(16,),
            mode=mode,
            tolerance=1e-4,
            expected=lambda x, g, mode=mode: functional.grid_sample(
                torch.from_numpy(x), torch.from_numpy(g), mode, align_corners=False
            ).numpy(),
        )
    ),
    *calls(
        "GridSample",
        X,
        GRID,
        opsets=(20,),
        mode="cubic",
        padding_mode="border",
        tolerance=1e-4,
    ),
    *calls("GridSample", VOLUME, PLACES, opsets=(20,), tolerance=1e-4),
    *calls("GridSample", VOLUME, PLACES, opsets=(20,), mode="cubic", refused="cubic interpolation"),
    *calls("AffineGrid", data(2, 2, 3), np.array([2, 3, 4, 5]), opsets=(20,), constants="b"),
    *(
        c
        for mode in ("avg", "max")
        for position in ("half_pixel", "output_half_pixel")
        for c in calls(
            "RoiAlign",
            X,
            ROIS,
            IMAGES,
            opsets=(16, 22),
            mode=mode,
            coordinate_transformation_mode=position,
            sampling_ratio=2,
            output_height=3,
            output_width=2,
            spatial_scale=0.9,
            tolerance=1e-4,
        )
    ),
    *calls(
        "RoiAlign",
        X,
        ROIS,
        IMAGES,
        opsets=(10, 16),
        output_height=2,
        output_width=2,
        coordinate_transformation_mode="output_half_pixel",
        tolerance=1e-4,
    )[1:],
    *calls(
        "RoiAlign", X, ROIS, IMAGES, opsets=(16,), output_height=2, output_width=2, tolerance=1e-4
    ),
    *calls("RoiAlign", X, ROIS, IMAGES, opsets=(16,), mode="max", refused="state sampling_ratio"),
    # More elements and more images than half precision counts.
    *(
        c
        for mode in ("avg", "max")
        for c in calls(
            "RoiAlign",
            data(2051, 1, 2, 2, low=1, dtype="float16"),
            np.float16([[0, 1, 1, 2], [1, 0, 2, 1]]),
            np.array([2049, 2050]),
            opsets=(22,),
            label=f"images of float16,{mode}",
            mode=mode,
            sampling_ratio=1,
            expected=lambda x, r, i: np.stack([x[2049, :, 1:, :1], x[2050, :, :1, 1:]]),
        )
    ),
    *calls(
        "RoiAlign",
        data(1, 1, 64, 65, low=1, dtype="float16"),
        np.float16([[60, 61, 61, 62]]),
        np.array([0]),
        opsets=(22,),
        label="elements of float16",
        mode="max",
        sampling_ratio=1,
        expected=lambda x, r, i: x[:, :, 61:62, 60:61],
    ),
    *calls(
        "MaxRoiPool",
        data(2051, 1, 2, 2, low=1, dtype="float16"),
        np.float16([[2048, 0, 0, 1, 1]]),
        label="images of float16",
        opsets=(22,),
        pooled_shape=[1, 1],
        expected=lambda x, r: x[2048:2049].max((2, 3), keepdims=True),
    ),
    *calls(
        "DeformConv",
        data(1, 1, 64, 65, low=1, dtype="float16"),
        np.ones((1, 1, 1, 1), "float16"),
        np.zeros((1, 2, 64, 65), "float16"),
        opsets=(22,),
        label="elements of float16",
        expected=lambda x, w, o: x,
    ),
    *calls(
        "MaxRoiPool",
        X,
        np.float32([[0, 0, 0, 5, 5], [1, 1, 2, 6, 5]]),
        opsets=(1, 22),
        pooled_shape=[2, 2],
        expected=lambda x, r: np.stack(
            [
                x[0, :, :6, :6].reshape(3, 2, 3, 2, 3).max((2, 4)),
                x[1, :, 2:6, 1:7].reshape(3, 2, 2, 2, 3).max((2, 4)),
            ]
        ),
    ),
    *calls(
        "DeformConv",
        data(1, 4, 5, 5),
        data(2, 4, 2, 2),
        data(1, 8, 4, 4),
        opsets=(19, 22),
        tolerance=1e-4,
    ),
    *calls(
        "DeformConv",
        data(2, 4, 6, 6),
        data(4, 2, 2, 2),
        data(2, 16, 4, 4),
        data(4),
        data(2, 8, 4, 4),
        opsets=(22,),
        group=2,
        offset_group=2,
        pads=[1, 0, 1, 0],
        strides=[2, 1],
        dilations=[1, 2],
        tolerance=1e-4,
    ),
    *calls(
        "NonMaxSuppression", BOXES, SCORES, *numbers(3, 0.5, 0.4), opsets=(10, 11), constants="cde"
    ),
    *calls(
        "NonMaxSuppression",
        BOXES,
        SCORES,
        opsets=(11,),
        label="nothing",
        expected=lambda b, s: np.zeros((0, 3), np.int64),
    ),
    *calls(
        "NonMaxSuppression",
        BOXES,
        SCORES,
        np.array([3]),
        opsets=(11,),
        refused="the number of boxes depends",
    ),
]
