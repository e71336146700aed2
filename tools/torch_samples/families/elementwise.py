"""Functions of every element of one tensor."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import real


def nan_to_num(
    input: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """Left out, infinities become the extreme numbers of the dtype."""
    largest = {"float32": (2 - 2**-23) * 2.0**127, "float64": (2 - 2**-52) * 2.0**1023}
    most = largest.get(input.dtype, 0)
    y = meta.where(meta.isnan(input), 0.0 if nan is None else nan, input)
    y = meta.where(meta.equal(input, math.inf), most if posinf is None else posinf, y)
    return meta.where(meta.equal(input, -math.inf), -most if neginf is None else neginf, y)


def sinc(input: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0."""
    zero = meta.equal(input, 0)
    x = meta.where(zero, 1, input * math.pi)
    return meta.where(zero, 1, meta.sin(x) / x)


def entr(input: Any) -> Any:
    """-x log(x): 0 at 0 and -inf below."""
    inner = -input * meta.log(meta.where(meta.equal(input, 0), 1, input))
    return meta.where(meta.less(input, 0), -math.inf, inner)


def logit(input: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)), with x clipped to [eps, 1 - eps]."""
    x = real(input) if eps is None else meta.clip(real(input), eps, 1 - eps)
    return meta.log(x / (1 - x))


ADAPTERS = {
    "abs": meta.abs,
    "acos": meta.acos,
    "acosh": meta.acosh,
    "angle": lambda input: meta.where(
        meta.isnan(input), input, meta.cast_like(meta.less(input, 0), input) * math.pi
    ),
    "asin": meta.asin,
    "asinh": meta.asinh,
    "atan": meta.atan,
    "atanh": meta.atanh,
    "bitwise_not": meta.bitwise_not,
    "ceil": meta.ceil,
    "cos": meta.cos,
    "cosh": meta.cosh,
    "deg2rad": lambda input: real(input) * (math.pi / 180),
    "erf": meta.erf,
    "exp": meta.exp,
    "exp2": lambda input: meta.power(2.0, real(input)),
    "expm1": meta.expm1,
    "floor": meta.floor,
    "frac": lambda input: input - meta.trunc(input),
    "isfinite": meta.isfinite,
    "isinf": meta.isinf,
    "isnan": meta.isnan,
    "isneginf": lambda input: meta.equal(input, -math.inf),
    "isposinf": lambda input: meta.equal(input, math.inf),
    "isreal": lambda input: meta.ones(input.shape, "bool"),
    "log": meta.log,
    "log10": meta.log10,
    "log1p": meta.log1p,
    "log2": meta.log2,
    "logical_not": meta.logical_not,
    "logit": logit,
    "nan_to_num": nan_to_num,
    "neg": meta.negative,
    "positive": meta.copy,
    "rad2deg": lambda input: real(input) * (180 / math.pi),
    "reciprocal": meta.reciprocal,
    "round": meta.round,
    "round|decimals_0": lambda input, decimals: meta.round(input),
    "round|decimals_3": lambda input, decimals: meta.round(input * 1e3) / 1e3,
    "round|decimals_neg_3": lambda input, decimals: meta.round(input / 1e3) * 1e3,
    "rsqrt": meta.rsqrt,
    "sgn": meta.sign,
    "sigmoid": meta.sigmoid,
    "sign": meta.sign,
    "signbit": lambda input: meta.less(meta.where(input == 0, 1 / input, input), 0),
    "sin": meta.sin,
    "sinc": sinc,
    "sinh": meta.sinh,
    "special.entr": entr,
    "sqrt": meta.sqrt,
    "square": lambda input: input * input,
    "tan": meta.tan,
    "tanh": meta.tanh,
    "trunc": meta.trunc,
}
