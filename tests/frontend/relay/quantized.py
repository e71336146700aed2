"""Quantized arithmetic element by element, with fractions: the oracle of the qnn families."""

from fractions import Fraction
from math import floor, frexp

import numpy as np

LIMITS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
}


def half_up(value):
    return floor(value + Fraction(1, 2))


def half_away(value):
    return half_up(value) if value >= 0 else -half_up(-value)


def saturated(value, dtype):
    low, high = LIMITS[dtype]
    return min(max(value, low), high)


def fixed_point(value):
    """The fraction that the 31 bits and the exponent of a ratio stand for."""
    fraction, exponent = frexp(value)
    return Fraction(half_away(Fraction(fraction) * 2**31)) * Fraction(2) ** (exponent - 31)


def along(values, x, axis):
    """A number or a vector along an axis, as an array of the shape of x."""
    values = np.asarray(values)
    if values.ndim:
        shape = [1] * x.ndim
        shape[axis] = -1
        values = values.reshape(shape)
    return np.broadcast_to(values, x.shape)


def each(function, x, *others, dtype):
    """function(element of x, of each other) as an array."""
    found = [function(*v) for v in zip(x.flat, *(o.flat for o in others), strict=True)]
    return np.array(found, dtype).reshape(x.shape)


def requantize(x, scale, zero, to_scale, to_zero, dtype="int8", axis=-1, rounding=half_up):
    def one(value, s, z):
        ratio = fixed_point(float(s) / float(to_scale))
        return saturated(rounding((int(value) - int(z)) * ratio) + int(to_zero), dtype)

    x = np.asarray(x)
    return each(one, x, along(scale, x, axis), along(zero, x, axis), dtype=dtype)


def quantize(x, scale, zero, dtype="int8", axis=-1):
    def one(value, s, z):
        quotient = np.float32(value) / np.float32(s)
        if np.isnan(quotient):
            return LIMITS[dtype][1]
        if np.isinf(quotient):
            return LIMITS[dtype][int(quotient > 0)]
        return saturated(half_away(Fraction(float(quotient))) + int(z), dtype)

    with np.errstate(all="ignore"):
        return each(one, x, along(scale, x, axis), along(zero, x, axis), dtype=dtype)


def dequantize(x, scale, zero, axis=-1):
    s, z = along(scale, x, axis), along(zero, x, axis)
    return (x.astype(np.int32) - z).astype(np.float32) * s.astype(np.float32)
