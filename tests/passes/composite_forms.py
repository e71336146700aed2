"""Activations and normalisations, written out in the ways of models: over torch or meta, ``lib``.

Every form takes x and vectors of its last axis, a scale and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

ROOT = math.sqrt(2 / math.pi)
Form = Callable[..., Any]


def _square_mean(lib: Any, x: Any) -> Any:
    return lib.mean(x * x, -1, True)


def _variance(lib: Any, x: Any) -> Any:
    return _square_mean(lib, x - lib.mean(x, -1, True))


FORMS: dict[str, tuple[str, Form]] = {
    "gpt2": (
        "tanh_gelu",
        lambda lib, x, w, b: 0.5 * x * (1.0 + lib.tanh(ROOT * (x + 0.044715 * lib.pow(x, 3.0)))),
    ),
    "a common factor": (
        "tanh_gelu",
        lambda lib, x, w, b: 0.5 * x * (1.0 + lib.tanh(x * ROOT * (1.0 + 0.044715 * x * x))),
    ),
    "ten digits": (
        "tanh_gelu",
        lambda lib, x, w, b: 0.5 * x * (1 + lib.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    ),
    "products": (
        "tanh_gelu",
        lambda lib, x, w, b: (lib.tanh((0.044715 * x * x * x + x) * ROOT) + 1) * x / 2,
    ),
    "squares": (
        "tanh_gelu",
        lambda lib, x, w, b: x * (lib.tanh(x * (1 + 0.044715 * lib.square(x)) * ROOT) + 1) * 0.5,
    ),
    "erf": ("exact_gelu", lambda lib, x, w, b: x * 0.5 * (1.0 + lib.erf(x / math.sqrt(2.0)))),
    "erf of a product": (
        "exact_gelu",
        lambda lib, x, w, b: 0.5 * (1 + lib.erf(x * math.sqrt(0.5))) * x,
    ),
    "erf halved": (
        "exact_gelu",
        lambda lib, x, w, b: x * (0.5 + 0.5 * lib.erf(x * math.sqrt(0.5))),
    ),
    "of a sum": (
        "exact_gelu",
        lambda lib, x, w, b: (x + b) * 0.5 * (1.0 + lib.erf((x + b) / math.sqrt(2.0))),
    ),
    "llama": (
        "rms_norm",
        lambda lib, x, w, b: w * (x * lib.rsqrt(_square_mean(lib, x) + 1e-5)),
    ),
    "a quotient": ("rms_norm", lambda lib, x, w, b: x / lib.sqrt(_square_mean(lib, x) + 1e-5) * w),
    "a power": ("rms_norm", lambda lib, x, w, b: x * (_square_mean(lib, x) + 1e-5) ** -0.5 * w),
    "one and a weight": (
        "rms_norm",
        lambda lib, x, w, b: x * lib.rsqrt(_square_mean(lib, x) + 1e-5) * (1.0 + w),
    ),
    "one over a root": (
        "rms_norm",
        lambda lib, x, w, b: (1 / lib.sqrt(_square_mean(lib, x) + 1e-5)) * x * w,
    ),
    "without a weight": (
        "rms_norm",
        lambda lib, x, w, b: x * lib.rsqrt(_square_mean(lib, x) + 1e-5),
    ),
    "layer": (
        "layer_norm",
        lambda lib, x, w, b: (
            (x - lib.mean(x, -1, True)) / lib.sqrt(_variance(lib, x) + 1e-5) * w + b
        ),
    ),
    "layer of a weight": (
        "layer_norm",
        lambda lib, x, w, b: w * ((x - lib.mean(x, -1, True)) * lib.rsqrt(_variance(lib, x) + 0.1)),
    ),
    "layer alone": (
        "layer_norm",
        lambda lib, x, w, b: (x - lib.mean(x, -1, True)) / lib.sqrt(_variance(lib, x) + 1e-5),
    ),
    "layer multiplied out": (
        "layer_norm",
        lambda lib, x, w, b: (
            x * (lib.rsqrt(_variance(lib, x) + 1e-5) * w)
            + (b - lib.mean(x, -1, True) * (lib.rsqrt(_variance(lib, x) + 1e-5) * w))
        ),
    ),
}
"""By name, what a form is, and the form."""


OTHERS: dict[str, Form] = {
    "another factor": lambda lib, x, w, b: 0.4 * x * (1 + lib.tanh(ROOT * (x + 0.044715 * x**3))),
    "another root": lambda lib, x, w, b: 0.5 * x * (1 + lib.tanh(0.8 * (x + 0.044715 * x**3))),
    "another cubic": lambda lib, x, w, b: 0.5 * x * (1 + lib.tanh(ROOT * (x + 0.0447 * x**3))),
    "another power": lambda lib, x, w, b: 0.5 * x * (1 + lib.tanh(ROOT * (x + 0.044715 * x**2))),
    "another sum": lambda lib, x, w, b: 0.5 * x * (2 + lib.tanh(ROOT * (x + 0.044715 * x**3))),
    "another argument": lambda lib, x, w, b: (
        0.5 * x * (1 + lib.tanh(ROOT * (x + 0.044715 * (x + 1) ** 3)))
    ),
    "another x": lambda lib, x, w, b: 0.5 * (x + 1) * (1 + lib.tanh(ROOT * (x + 0.044715 * x**3))),
    "another normal": lambda lib, x, w, b: 0.5 * x * (1 + lib.erf(x / 2)),
    "once more": lambda lib, x, w, b: 0.5 * x * x * (1 + lib.erf(x / math.sqrt(2))),
    "another axis": lambda lib, x, w, b: x * lib.rsqrt(lib.mean(x * x, 0, True) + 1e-5) * w,
    "both axes": lambda lib, x, w, b: x * lib.rsqrt(lib.mean(x * x, (0, 1), True) + 1e-5),
    "a cube": lambda lib, x, w, b: x * lib.rsqrt(lib.mean(x * x * x, -1, True) + 400.0) * w,
    "of another": lambda lib, x, w, b: (x + 1) * lib.rsqrt(_square_mean(lib, x) + 1e-5) * w,
    "a root of the square": lambda lib, x, w, b: x / (lib.sqrt(_square_mean(lib, x)) + 1e-5) * w,
    "no root": lambda lib, x, w, b: x / (_square_mean(lib, x) + 1e-5) * w,
    "another mean": lambda lib, x, w, b: (
        (x - lib.mean(x, 0, True)) / lib.sqrt(_variance(lib, x) + 1e-5) * w + b
    ),
    "a mean too little": lambda lib, x, w, b: x / lib.sqrt(_variance(lib, x) + 1e-5) * w + b,
}
"""What is none of them: a statistic along the first axis only is one without the vector of the
last.
"""
