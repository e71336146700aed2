"""Cases of normalisations and of dropout that drops nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 6, 3, 4)
S, B, M, V = data(6), data(6, low=0, high=1), data(6, low=-1, high=1), data(6, low=0.5, high=1.5)


def batch_norm(x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
    return functional.batch_norm(*map(torch.from_numpy, (x, m, v, s, b))).numpy()


def by_torch(function: Any, *options: Any) -> Any:
    return lambda x, *more: function(
        torch.from_numpy(x), *options, *map(torch.from_numpy, more)
    ).numpy()


def local(x: Any, size: int) -> Any:
    """Local response normalisation by ONNX's formula, in float64."""
    square = np.zeros(x.shape)
    for c in range(x.shape[1]):
        first, last = max(c - (size - 1) // 2, 0), min(c + size // 2, x.shape[1] - 1)
        square[:, c] = (x[:, first : last + 1].astype(np.float64) ** 2).sum(1)
    return (x / (1.5 + 0.2 / size * square) ** 0.6).astype(np.float32)


def lp(x: Any, p: int) -> Any:
    """x over its norm along axis 0, 0 where that is 0; onnx's reference takes no absolute value."""
    norm = (np.abs(x) ** p).sum(0, keepdims=True) ** (1 / p)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(np.float32)


CASES: list[OnnxCase] = [
    *calls(
        "BatchNormalization",
        X,
        S,
        B,
        M,
        V,
        opsets=(7, 9, 14, 15),
        tolerance=1e-4,
        expected=batch_norm,
    ),
    *calls(
        "BatchNormalization",
        X,
        S,
        B,
        M,
        V,
        opsets=(6,),
        tolerance=1e-4,
        is_test=1,
        expected=batch_norm,
    ),
    *calls(
        "BatchNormalization",
        X,
        S,
        B,
        M,
        V,
        opsets=(14, 15),
        results=3,
        tolerance=1e-4,
        training_mode=1,
        momentum=0.8,
        epsilon=1e-2,
    ),
    *calls(
        "BatchNormalization",
        data(2, 3),
        data(3),
        data(3),
        data(3),
        data(3, low=0.5, high=1.5),
        opsets=(7,),
        spatial=0,
        tolerance=1e-4,
        expected=lambda x, s, b, m, v: (x - m) / np.sqrt(v + 1e-5) * s + b,
    ),
    *calls("InstanceNormalization", X, S, B, opsets=(1, 6, 22), tolerance=1e-4),
    *calls(
        "GroupNormalization",
        X,
        S,
        B,
        opsets=(21,),
        tolerance=1e-4,
        num_groups=3,
        expected=lambda x, s, b: functional.group_norm(
            *map(torch.from_numpy, (x,)), 3, *map(torch.from_numpy, (s, b))
        ).numpy(),
    ),
    *calls("LayerNormalization", X, data(4), data(4), opsets=(17,), tolerance=1e-4),
    *calls("LayerNormalization", X, data(3, 4), opsets=(17,), tolerance=1e-4, axis=2),
    *calls(
        "LayerNormalization",
        X,
        data(4),
        data(1),
        opsets=(17,),
        tolerance=1e-4,
        axis=-2,
        label="a scale that is broadcast",
    ),
    *(
        c
        for size in (3, 4)
        for c in calls(
            "LRN",
            X,
            opsets=(1, 13),
            size=size,
            alpha=0.2,
            beta=0.6,
            bias=1.5,
            expected=lambda x, size=size: local(x, size),
        )
    ),
    *calls("MeanVarianceNormalization", X, opsets=(9, 13), tolerance=1e-4),
    *calls("MeanVarianceNormalization", X, opsets=(13,), axes=[1, 2], tolerance=1e-4),
    *(
        c
        for p in (1, 2)
        for c in calls(
            "LpNormalization",
            np.float32([[1, 0, -2], [3, 0, 4]]),
            opsets=(1, 22),
            axis=0,
            p=p,
            expected=lambda x, p=p: lp(x, p),
        )
    ),
    *calls("Dropout", X, opsets=(1, 6), is_test=1, expected=lambda x: x),
    *calls(
        "Dropout", X, opsets=(12, 22), results=2, expected=lambda x: (x, np.ones(x.shape, bool))
    ),
    *calls(
        "Dropout",
        X,
        np.float32(0.0),
        np.bool_(True),
        opsets=(12, 22),
        constants="bc",
        expected=lambda x, r, t: x,
    ),
    *calls(
        "Dropout",
        X,
        np.float32(0.5),
        opsets=(13,),
        label="a share of the run time",
        expected=lambda x, r: x,
    ),
    *calls(
        "Dropout",
        X,
        np.float32(0.5),
        np.bool_(True),
        opsets=(13,),
        refused="the mode depends on the values of inputs",
    ),
]
