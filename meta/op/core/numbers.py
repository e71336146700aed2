"""Arithmetic on Python numbers for calls without a tensor, whose result is known at once.

It gives what the same call on 0-d tensors gives where Python raises or leaves the real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meta.base.errors import DivisionByZero, TypeInferError

Number = bool | int | float
_LARGEST_BITS = 63


def of_float(function: Callable[[Any], Any], x: Number) -> float:
    """Apply a numpy function to a number as float64; poles and domain errors give inf and NaN."""
    with np.errstate(all="ignore"):
        return float(function(np.float64(x)))


def of_floats(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], float]:
    """Return numpy's function of two numbers as float64; poles give inf, domain errors NaN."""

    def on_numbers(x1: Number, x2: Number) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.float64(x1), np.float64(x2)))

    return on_numbers


def divide(x1: Number, x2: Number) -> float:
    """x1 / x2 as a float; a division by zero gives inf or NaN."""
    with np.errstate(all="ignore"):
        return x1 / x2 if x2 else float(np.float64(x1) / np.float64(x2))


def floor_divide(x1: Number, x2: Number) -> Number:
    """floor(x1 / x2); by zero inf or NaN for floats, DivisionByZero for ints."""
    if x2:
        return x1 // x2
    if isinstance(x1, float) or isinstance(x2, float):
        return divide(x1, x2)
    raise by_zero(f"{x1} // {x2}")


def by_zero(found: str) -> DivisionByZero:
    """Return what is said of an integer that is divided by the number 0."""
    return DivisionByZero(
        "an integer is divided by 0",
        expected="a divisor that is not 0",
        found=found,
        hint="floating point has infinities and NaN: divide float numbers",
    )


def remainder(x1: Number, x2: Number) -> Number:
    """x1 - x2 * floor(x1 / x2); by zero NaN for floats, DivisionByZero for ints."""
    floats = isinstance(x1, float) or isinstance(x2, float)
    if not x2 and floats:
        return math.nan
    if not x2:
        raise by_zero(f"{x1} % {x2}")
    found = x1 % x2
    return found or math.copysign(0.0, x1) if floats else found  # Python's zero has x2's sign


def pow(x1: Number, x2: Number) -> Number:
    """x1 ** x2; for ints an int. TypeInferError beyond 64 bits and for a negative exponent."""
    if isinstance(x1, float) or isinstance(x2, float):
        return of_floats(np.power)(x1, x2)
    if x2 < 0:
        raise negative_power(f"{x1} ** {x2}")
    if abs(x1) < 2:
        return _unit_power(int(x1), int(x2))
    # The size is checked first: 10 ** 10 ** 10 would not end.
    if x2 * (x1.bit_length() - 1) <= _LARGEST_BITS:
        result = int(x1**x2)
        if result.bit_length() <= _LARGEST_BITS:
            return result
    raise TypeInferError("the power does not fit into 64 bits", found=f"{x1} ** {x2}")


def negative_power(found: str) -> TypeInferError:
    """Return what is said of integers with a negative exponent."""
    return TypeInferError(
        "an integer has no negative power that is an integer",
        expected="an exponent of 0 or more",
        found=found,
        hint="take floating point: meta.astype(x, 'float32') ** -1, or meta.reciprocal(x)",
    )


def _unit_power(x1: int, x2: int) -> int:
    if x1 in (1, -1):
        return x1 if x2 % 2 else 1
    return 1 if x2 == 0 else 0
