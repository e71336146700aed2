"""Cases of convolutions and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.frontend.onnx.records import OnnxCase, calls, data

X, W, B = data(2, 4, 7, 6), data(6, 4, 3, 3), data(6)
DEPTHWISE = data(4, 1, 3, 3)
BACK = data(4, 2, 3, 3)


def transposed(x: Any, w: Any, *more: Any, **options: Any) -> Any:
    arrays = map(torch.from_numpy, (x, w, *more))
    return functional.conv_transpose2d(*arrays, **options).numpy()


def shaped(x: Any, w: Any, shape: tuple[int, int], upper: bool) -> Any:
    """A result of an asked for shape: by ONNX's formula of the padding."""
    whole = transposed(x, w, stride=2)
    total = [e - s for e, s in zip(whole.shape[2:], shape, strict=True)]
    first = [max(t // 2 if upper else t - t // 2, 0) for t in total]
    y = np.zeros((*whole.shape[:2], *(e + 20 for e in whole.shape[2:])))
    y[:, :, : whole.shape[2], : whole.shape[3]] = whole
    result = y[:, :, first[0] : first[0] + shape[0], first[1] : first[1] + shape[1]]
    return result.astype(np.float32)


def cut(x: Any, w: Any, b: Any) -> Any:
    """One row cut off before and two behind, where output_padding adds one and two elements."""
    whole = transposed(x, w, b, stride=(2, 3))
    rows, columns = whole.shape[2] + 1 - 3, whole.shape[3] + 2 - 1
    y = np.broadcast_to(b[None, :, None, None], (2, 2, whole.shape[2] + 4, whole.shape[3] + 4))
    y = y.copy()
    y[:, :, : whole.shape[2], : whole.shape[3]] = whole
    return y[:, :, 1 : 1 + rows, :columns]


CASES: list[OnnxCase] = [
    *calls("Conv", X, W, opsets=(1, 11, 22), tolerance=1e-4),
    *calls("Conv", X, W, B, opsets=(11,), tolerance=1e-4, pads=[1, 0, 2, 1], strides=[2, 1]),
    *calls("Conv", X, W, opsets=(11,), tolerance=1e-4, dilations=[2, 1], kernel_shape=[3, 3]),
    *calls("Conv", X, DEPTHWISE, opsets=(11,), tolerance=1e-4, group=4),
    *(
        c
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for c in calls("Conv", X, W, opsets=(11,), tolerance=1e-4, auto_pad=auto, strides=[2, 2])
    ),
    *calls("Conv", data(1, 2, 8), data(3, 2, 3), opsets=(11,), tolerance=1e-4, pads=[1, 1]),
    *calls(
        "Conv",
        data(1, 2, 4, 5, 4),
        data(3, 2, 2, 2, 2),
        opsets=(11,),
        tolerance=1e-4,
        expected=lambda x, w: functional.conv3d(*map(torch.from_numpy, (x, w))).numpy(),
    ),
    *calls("Conv", X, W, opsets=(11,), kernel_shape=[2, 2], refused="is not that of the weight"),
    *calls("ConvTranspose", X, BACK, opsets=(1, 11, 22), tolerance=1e-4),
    *calls(
        "ConvTranspose",
        X,
        BACK,
        data(2),
        opsets=(11,),
        tolerance=1e-4,
        strides=[2, 3],
        pads=[1, 0, 2, 1],
        output_padding=[1, 2],
        expected=lambda x, w, b: cut(x, w, b),
    ),
    *calls(
        "ConvTranspose",
        X,
        data(4, 1, 3, 3),
        opsets=(11,),
        tolerance=1e-4,
        group=2,
        dilations=[2, 2],
        expected=lambda x, w: transposed(x, w, groups=2, dilation=2),
    ),
    *(
        c
        for auto in ("NOTSET", "SAME_UPPER", "SAME_LOWER")
        for shape in ((14, 12), (13, 13), (16, 15))
        for c in calls(
            "ConvTranspose",
            X,
            BACK,
            opsets=(11,),
            tolerance=1e-4,
            auto_pad=auto,
            output_shape=shape,
            strides=[2, 2],
            expected=lambda x, w, shape=shape, auto=auto: shaped(x, w, shape, auto == "SAME_UPPER"),
        )
    ),
    *calls(
        "Col2Im",
        data(1, 8, 6),
        np.array([4, 5]),
        np.array([2, 2]),
        opsets=(18,),
        constants="bc",
        dilations=[1, 2],
        strides=[2, 1],
        pads=[0, 0, 0, 0],
        expected=lambda x, i, b: functional.fold(
            torch.from_numpy(x), (4, 5), (2, 2), (1, 2), 0, (2, 1)
        ).numpy(),
    ),
    *calls("MatMul", data(2, 3, 4), data(4, 5), opsets=(1, 9, 13)),
    *calls("MatMul", data(4), data(2, 4, 5), opsets=(13,), label="a vector"),
    *(
        OnnxCase(
            "MatMul",
            f"(float{list(left)} x, bool[3] c, float{list(right)} w) => (float y) "
            "{ z = Compress<axis = 1>(x, c) y = MatMul(z, w) }",
            (data(*left), np.array([True, False, True]), data(*right)),
            label=f"unknown rows {len(left)} {len(right)}",
        )
        for left, right in (
            ((2, 3, 4), (4, 5)),
            ((2, 3, 4), (2, 4, 5)),
            ((2, 3, 4), (4,)),
            ((2, 3, 4, 5), (5, 6)),
            ((2, 3, 4, 5), (2, 5, 6)),
        )
    ),
    *calls("MatMul", np.int32([[1, 2]]), np.int32([[3], [4]]), opsets=(9,), label="integers"),
    *calls("Gemm", data(2, 3), data(3, 4), data(4), opsets=(7, 9, 13), alpha=0.5, beta=2.0),
    *calls("Gemm", data(3, 2), data(4, 3), opsets=(11, 13), transA=1, transB=1),
    *calls(
        "Gemm",
        data(2, 3),
        data(3, 4),
        data(4),
        opsets=(1, 6),
        broadcast=1,
        expected=lambda a, b, c: a @ b + c,
    ),
    *calls("Einsum", data(2, 3), data(3, 4), opsets=(12,), equation="ij, jk -> ik"),
    *calls("Einsum", data(2, 3, 3), opsets=(12,), equation="...ii->...i"),
    *calls("Det", data(2, 3, 3), opsets=(11, 22)),
]
