"""Cases of activations and of the softmax family."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 3, 4)
WIDE = data(2, 3, low=-8.0, high=8.0)
HALF = data(2, 3).astype(np.float16)


def rows(x: Any, axis: int) -> Any:
    """All axes from the given one as one, as softmax saw them before opset 13."""
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def softmax(x: Any, axis: int, log: bool = False) -> Any:
    function = torch.log_softmax if log else torch.softmax
    return function(torch.from_numpy(rows(x, axis)), 1).numpy().reshape(x.shape)


def hardmax(x: Any, axis: int) -> Any:
    flat = rows(x, axis)
    result = np.zeros_like(flat)
    result[np.arange(len(flat)), flat.argmax(1)] = 1
    return result.reshape(x.shape)


CASES: list[OnnxCase] = [
    *(c for n in ("Relu", "Sigmoid", "Selu", "Elu") for c in calls(n, WIDE, opsets=(6, 14))),
    *calls("Elu", WIDE, opsets=(6, 22), alpha=1.5),
    *calls("Selu", WIDE, opsets=(6, 22), alpha=1.5, gamma=2.0),
    *calls("LeakyRelu", WIDE, opsets=(6, 16), alpha=0.1),
    *calls(
        "Celu",
        WIDE,
        opsets=(12, 28),
        alpha=2.0,
        expected=lambda x: torch.celu(torch.from_numpy(x), 2.0).numpy(),
    ),
    *(c for n in ("Softplus", "Softsign") for c in calls(n, WIDE, opsets=(1, 22))),
    *calls("HardSigmoid", WIDE, opsets=(6, 22), alpha=0.3, beta=0.4),
    *calls("HardSwish", WIDE, opsets=(14, 22)),
    *calls("Mish", WIDE, opsets=(18, 22)),
    *calls("ThresholdedRelu", WIDE, opsets=(10, 22), alpha=1.5),
    *calls(
        "Shrink",
        np.array([-5, 0, 1, 4], np.int32),
        opsets=(9,),
        lambd=1.5,
        bias=2.0,
        expected=lambda x: np.array([-3, 0, 0, 2], np.int32),
    ),
    *calls("PRelu", X, data(4), opsets=(7, 9, 16)),
    *calls(
        "PRelu", X, data(3), opsets=(1, 6), expected=lambda x, s: np.where(x < 0, x * s[:, None], x)
    ),
    *calls("PRelu", X, data(1), opsets=(1, 6), expected=lambda x, s: np.where(x < 0, x * s, x)),
    *calls("PRelu", X, data(4), opsets=(6,), refused="one slope, or one for each channel"),
    *calls(
        "Clip", WIDE, opsets=(1, 6), min=-1.5, max=2.0, expected=lambda x: np.clip(x, -1.5, 2.0)
    ),
    *calls("Clip", WIDE, opsets=(6,), max=2.0, expected=lambda x: np.minimum(x, 2.0)),
    *calls("Clip", WIDE, np.float32(-1.5), np.float32(2.0), opsets=(11, 13), constants="bc"),
    *calls("Clip", WIDE, np.float32(-1.5), np.float32(2.0), opsets=(11, 13), label="of inputs"),
    *calls("Clip", WIDE, None, np.float32(2.0), opsets=(11, 13)),
    *calls(
        "Clip", np.array([-5, 3, 9], np.int8), np.int8(-2), np.int8(4), opsets=(12,), constants="bc"
    ),
    *calls(
        "Clip",
        WIDE,
        np.float32(3.0),
        np.float32(2.0),
        opsets=(13,),
        constants="bc",
        label="crossed",
        expected=lambda x, a, b: np.full_like(x, 2.0),
    ),
    *(
        case
        for axis in (0, 1, 2, -1)
        for case in (
            *calls(
                "Softmax",
                X,
                opsets=(1, 11) if axis >= 0 else (11,),
                axis=axis,
                expected=lambda x, a=axis: softmax(x, a % 3),
            ),
            *calls(
                "LogSoftmax",
                X,
                opsets=(11,),
                axis=axis,
                expected=lambda x, a=axis: softmax(x, a % 3, True),
            ),
            *calls(
                "Hardmax", X, opsets=(11,), axis=axis, expected=lambda x, a=axis: hardmax(x, a % 3)
            ),
        )
    ),
    *calls("Softmax", X, opsets=(11,), label="without an axis", expected=lambda x: softmax(x, 1)),
    *calls("Relu", HALF, opsets=(14,), label="half"),
    *calls("Hardmax", np.zeros((2, 0), np.float32), opsets=(11, 13), expected=lambda x: x),
]
