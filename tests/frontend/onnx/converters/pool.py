"""Cases of pooling and of its reverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 3, 7, 6)
BYTES = (np.arange(50).reshape(1, 2, 5, 5) * 37 % 251).astype(np.uint8)


def places(x: Any, kernel: int, stride: int, columns: bool = False) -> Any:
    """Maxima and where they are in the whole input, by torch."""
    y, place = functional.max_pool2d(torch.from_numpy(x), kernel, stride, return_indices=True)
    place = place.numpy()
    rows, width = x.shape[2:]
    if columns:
        place = place % width * rows + place // width
    first = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1, 1) * rows * width
    return y.numpy(), place + first


def average(x: Any, pads: tuple[int, ...], kernel: int, counts: bool) -> Any:
    """The average with wide padding, by sums."""
    ones = torch.ones(1, 1, *x.shape[2:])
    wide = functional.pad(torch.from_numpy(x), pads)
    inside = torch.ones(1, 1, *wide.shape[2:]) if counts else functional.pad(ones, pads)
    total = functional.avg_pool2d(wide, kernel, 1) * kernel**2
    return (total / (functional.avg_pool2d(inside, kernel, 1) * kernel**2)).numpy()


CASES: list[OnnxCase] = [
    *calls("MaxPool", X, opsets=(1, 8, 10, 12, 22), kernel_shape=[3, 2]),
    *calls("MaxPool", X, opsets=(12,), kernel_shape=[3, 3], pads=[1, 0, 2, 1], strides=[2, 1]),
    *calls("MaxPool", X, opsets=(12,), kernel_shape=[3, 2], ceil_mode=1, strides=[2, 4]),
    *calls("MaxPool", X, opsets=(12,), kernel_shape=[2, 2], dilations=[3, 2]),
    *(
        c
        for auto in ("SAME_UPPER", "VALID")
        for c in calls(
            "MaxPool", X, opsets=(12,), kernel_shape=[3, 2], auto_pad=auto, strides=[2, 2]
        )
    ),
    # The extents are those of the input over the stride, rounded up; onnx's reference has fewer.
    *calls(
        "MaxPool",
        X,
        opsets=(12,),
        kernel_shape=[3, 2],
        auto_pad="SAME_LOWER",
        strides=[2, 2],
        expected=lambda x: functional.max_pool2d(torch.from_numpy(x), (3, 2), 2, (1, 0)).numpy(),
    ),
    *calls("MaxPool", data(1, 2, 9), opsets=(12,), kernel_shape=[3], strides=[2]),
    *calls("MaxPool", data(1, 2, 4, 5, 4), opsets=(12,), kernel_shape=[2, 2, 2]),
    *calls("MaxPool", BYTES, opsets=(12,), kernel_shape=[2, 2], label="bytes"),
    *calls(
        "MaxPool",
        X,
        opsets=(12,),
        results=2,
        kernel_shape=[2, 2],
        strides=[2, 2],
        expected=lambda x: places(x, 2, 2),
    ),
    *calls(
        "MaxPool",
        X,
        opsets=(12,),
        results=2,
        kernel_shape=[2, 2],
        strides=[2, 2],
        storage_order=1,
        expected=lambda x: places(x, 2, 2, True),
    ),
    *calls("AveragePool", X, opsets=(7, 10, 11, 22), kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    *calls(
        "AveragePool",
        X,
        opsets=(7, 19),
        kernel_shape=[3, 2],
        pads=[1, 0, 1, 1],
        count_include_pad=1,
    ),
    *calls("AveragePool", X, opsets=(19,), kernel_shape=[3, 2], ceil_mode=1, strides=[2, 4]),
    *calls("AveragePool", X, opsets=(19,), kernel_shape=[2, 2], dilations=[2, 3]),
    *calls(
        "AveragePool",
        X,
        opsets=(11,),
        kernel_shape=[3, 3],
        pads=[2, 2, 2, 2],
        expected=lambda x: average(x, (2, 2, 2, 2), 3, False),
    ),
    *calls(
        "AveragePool",
        X,
        opsets=(11,),
        kernel_shape=[2, 2],
        pads=[0, 2, 0, 1],
        count_include_pad=1,
        expected=lambda x: average(x, (2, 1, 0, 0), 2, True),
    ),
    *calls("LpPool", X, opsets=(2, 11, 18, 22), kernel_shape=[3, 2], p=3, tolerance=1e-4),
    *calls(
        "LpPool",
        X,
        opsets=(18,),
        kernel_shape=[2, 2],
        pads=[1, 0, 1, 1],
        strides=[2, 2],
        tolerance=1e-4,
    ),
    *calls("GlobalAveragePool", X, opsets=(1, 22)),
    *calls("GlobalMaxPool", X, opsets=(1, 22)),
    *calls(
        "GlobalLpPool",
        X,
        opsets=(2, 22),
        p=3,
        tolerance=1e-4,
        expected=lambda x: (
            (np.abs(x.astype(np.float64)) ** 3).sum((2, 3), keepdims=True).astype(np.float32)
            ** np.float32(1 / 3)
        ),
    ),
    *calls(
        "MaxUnpool",
        np.float32([[[[1, 2], [3, 4]]]]),
        np.array([[[[5, 7], [13, 15]]]]),
        opsets=(9, 11),
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    *calls(
        "MaxUnpool",
        np.float32([[[[5, 6], [7, 8]]]]),
        np.array([[[[5, 7], [13, 15]]]]),
        np.array([1, 1, 5, 5]),
        opsets=(11,),
        constants="c",
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    *(
        OnnxCase(
            name,
            "(float[4, 2, 7, 6] x, bool[4] k) => (float y) { z = Compress<axis = 0>(x, k) "
            f"y = {name}<kernel_shape = [2, 3], {rest}>(z) }}",
            (data(4, 2, 7, 6), np.array([True, False, True, True])),
            opset,
            label="of an unknown batch",
        )
        for name, rest, opset in (
            ("LpPool", "p = 1", 18),
            ("AveragePool", "strides = [2, 2], pads = [0, 1, 1, 0], count_include_pad = 1", 19),
            ("MaxPool", "dilations = [2, 1]", 12),
        )
    ),
    *calls("LpPool", X[:, :, :0], opsets=(18,), kernel_shape=[1, 1], p=1, label="nothing"),
]
