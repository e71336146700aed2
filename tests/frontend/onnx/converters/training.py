"""Cases of optimizers and of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.onnx.records import OnnxCase, calls, data

PREVIEW, ML = "ai.onnx.preview.training", "ai.onnx.ml"
RATE = np.float32(0.1)
X, G, H, V = data(3), data(3, low=0), data(3, low=0.5), data(3, low=0.1)


def adam(rate: Any, step: Any, x: Any, g: Any, v: Any, h: Any) -> tuple[Any, ...]:
    """The formula of the operator's description, in float64."""
    g = 0.01 * x.astype(np.float64) + g
    v, h = 0.8 * v + 0.2 * g, 0.9 * h + 0.1 * g * g
    corrected = rate * np.sqrt(1 - 0.9**step) / (1 - 0.8**step) if step else rate
    x = (1 - 0.1) * (x - corrected * v / (np.sqrt(h) + 0.001))
    return tuple(a.astype(np.float32) for a in (x, v, h))


CASES: list[OnnxCase] = [
    *(
        c
        for step in (0, 3)
        for c in (
            *calls(
                "Adagrad",
                RATE,
                np.int64(step),
                X,
                G,
                H,
                domain=PREVIEW,
                results=2,
                label=f"{step}",
                norm_coefficient=0.01,
                epsilon=0.001,
                decay_factor=0.1,
            ),
            *calls(
                "Adam",
                RATE,
                np.int64(step),
                X,
                G,
                V,
                H,
                domain=PREVIEW,
                results=3,
                label=f"{step}",
                norm_coefficient=0.01,
                epsilon=0.001,
                alpha=0.8,
                beta=0.9,
                norm_coefficient_post=0.1,
                expected=adam,
            ),
            *calls(
                "Momentum",
                RATE,
                np.int64(step),
                X,
                G,
                V,
                domain=PREVIEW,
                results=2,
                label=f"{step}",
                norm_coefficient=0.01,
                alpha=0.8,
                beta=0.9,
                mode="standard",
            ),
            *calls(
                "Momentum",
                RATE,
                np.int64(step),
                X,
                G,
                V,
                domain=PREVIEW,
                results=2,
                label=f"{step}-nesterov",
                norm_coefficient=0.01,
                alpha=0.8,
                beta=0.9,
                mode="nesterov",
            ),
        )
    ),
    *calls(
        "LabelEncoder",
        np.array([3, 1, 7]),
        domain=ML,
        domain_version=2,
        keys_int64s=[1, 3],
        values_floats=[0.5, 2.5],
        default_float=-1.0,
    ),
    *calls(
        "LabelEncoder",
        np.float32([1.5, np.nan, 0.0]),
        domain=ML,
        domain_version=2,
        keys_floats=[1.5, float("nan")],
        values_int64s=[4, 9],
        default_int64=-3,
        expected=lambda x: np.array([4, 9, -3]),
    ),
    *calls("ArrayFeatureExtractor", data(3, 4), np.array([0, 3, 1]), domain=ML),
    *calls("Binarizer", data(3, 4), domain=ML, threshold=0.5),
    *calls("Scaler", data(3, 2), domain=ML, offset=[0.5, 1.0], scale=[2.0, 3.0]),
    *calls(
        "LinearRegressor",
        data(3, 2),
        domain=ML,
        targets=2,
        coefficients=[1.0, 2.0, 3.0, 4.0],
        intercepts=[0.5, -0.5],
        expected=lambda x: x @ np.float32([[1, 3], [2, 4]]) + np.float32([0.5, -0.5]),
    ),
    *calls("SVMRegressor", data(3, 2), domain=ML, n_supports=1, refused="support vectors"),
]
