"""Functions of every element of one tensor."""

from __future__ import annotations

import math
from typing import Any

import meta


def frexp(input: Any) -> Any:
    """Parts from 1/2 to 1 and exponents, of which the exponents have no gradient."""
    ordinary = meta.logical_and(meta.isfinite(input), meta.not_equal(input, 0))
    with meta.no_grad():
        size = meta.abs(meta.astype(input, "float64"))
        place = meta.floor(meta.log2(meta.where(ordinary, size, 1.0))) + 1
        place = meta.where(ordinary, place, 0.0)
        scale = meta.cast_like(meta.exp2(-place), input)
    return input * scale, meta.astype(place, "int32")


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
    "bitwise_not": meta.bitwise_invert,
    "ceil": meta.ceil,
    "cos": meta.cos,
    "cosh": meta.cosh,
    "deg2rad": meta.deg2rad,
    "erf": meta.erf,
    "exp": meta.exp,
    "exp2": meta.exp2,
    "expm1": meta.expm1,
    "floor": meta.floor,
    "frexp": frexp,
    "frac": meta.frac,
    "isfinite": meta.isfinite,
    "isinf": meta.isinf,
    "isnan": meta.isnan,
    "isneginf": meta.isneginf,
    "isposinf": meta.isposinf,
    "isreal": lambda input: meta.ones(input.shape, "bool"),
    "log": meta.log,
    "log10": meta.log10,
    "log1p": meta.log1p,
    "log2": meta.log2,
    "logical_not": meta.logical_not,
    "logit": meta.logit,
    "nan_to_num": lambda input, nan=None, posinf=None, neginf=None: meta.nan_to_num(
        input, nan or 0.0, posinf, neginf
    ),
    "neg": meta.negative,
    "positive": meta.copy,
    "rad2deg": meta.rad2deg,
    "reciprocal": meta.reciprocal,
    "round": meta.round,
    "round|decimals_0": lambda input, decimals: meta.round(input),
    "round|decimals_3": lambda input, decimals: meta.round(input * 1e3) / 1e3,
    "round|decimals_neg_3": lambda input, decimals: meta.round(input / 1e3) * 1e3,
    "rsqrt": meta.rsqrt,
    "sgn": meta.sign,
    "sigmoid": meta.sigmoid,
    "sign": meta.sign,
    "signbit": meta.signbit,
    "sin": meta.sin,
    "sinc": meta.sinc,
    "sinh": meta.sinh,
    "sqrt": meta.sqrt,
    "square": lambda input: meta.square(
        meta.astype(input, "int64") if input.dtype == "bool" else input
    ),
    "tan": meta.tan,
    "tanh": meta.tanh,
    "trunc": meta.trunc,
}
