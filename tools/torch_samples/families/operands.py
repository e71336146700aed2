"""Functions of the elements of several tensors: arithmetic, comparisons, Python's operators."""

from __future__ import annotations

from typing import Any

import meta


def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input + alpha * other."""
    return meta.add(input, other if alpha == 1 else meta.multiply(other, alpha))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha * other."""
    return meta.subtract(input, other if alpha == 1 else meta.multiply(other, alpha))


def div(input: Any, other: Any, rounding_mode: str | None = None) -> Any:
    """Divide, and round towards 0 or towards -inf if asked."""
    if rounding_mode == "floor":
        return meta.floor_divide(input, other)
    if rounding_mode == "trunc" and "int" in input.dtype:
        below = meta.floor_divide(input, other)
        inexact = meta.not_equal(below * other, input)
        return below + meta.cast_like(meta.logical_and(inexact, below < 0), input)
    quotient = meta.divide(input, other)
    return quotient if rounding_mode is None else meta.trunc(quotient)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Bound below, then above; by numbers or tensors."""
    numbers = [isinstance(bound, int | float) for bound in (min, max)]
    if all(numbers):
        return meta.clip(input, min, max)
    y = input if min is None else at_least(input, min)
    return y if max is None else at_most(y, max)


def bounded(outside: Any) -> Any:
    """Return a bound that has the gradient where an element is beyond it, not where both are
    equal; a NaN on either side stays.
    """

    def applied(input: Any, bound: Any) -> Any:
        y = meta.where(outside(input, bound), bound, input)
        return meta.where(meta.isnan(bound), bound, y) if hasattr(bound, "dtype") else y

    return applied


at_least, at_most = bounded(meta.less), bounded(meta.greater)


def where(input: Any, condition: Any, other: Any) -> Any:
    """Either of two, as the condition says."""
    return meta.where(condition, input, other)


def float_power(input: Any, exponent: Any) -> Any:
    """The power in float64."""
    double = [meta.astype(v, "float64") if hasattr(v, "dtype") else v for v in (input, exponent)]
    return meta.pow(*double)


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors are the same."""
    return input.shape == other.shape and bool(meta.all(meta.equal(input, other)))


def allclose(input: Any, other: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether all elements are close."""
    return bool(meta.all(meta.isclose(input, other, *args, **kwargs)))


ADAPTERS = {
    "__radd__": lambda input, other: other + input,
    "__rand__": lambda input, other: meta.bitwise_and(other, input),
    "__rdiv__": lambda input, other: other / input,
    "__rmod__": lambda input, other: meta.remainder(other, input),
    "__rmul__": lambda input, other: other * input,
    "__ror__": lambda input, other: meta.bitwise_or(other, input),
    "__rpow__": lambda input, other: meta.pow(other, input),
    "__rsub__": lambda input, other: meta.subtract(other, input),
    "__rxor__": lambda input, other: meta.bitwise_xor(other, input),
    "add": add,
    "addcdiv": meta.addcdiv,
    "addcmul": meta.addcmul,
    "allclose": allclose,
    "atan2": meta.atan2,
    "bitwise_and": meta.bitwise_and,
    "bitwise_left_shift": meta.bitwise_left_shift,
    "bitwise_or": meta.bitwise_or,
    "bitwise_right_shift": meta.bitwise_right_shift,
    "bitwise_xor": meta.bitwise_xor,
    "clamp": clamp,
    "clamp_max": at_most,
    "clamp_min": at_least,
    "copysign": meta.copysign,
    "div|floor_rounding": div,
    "div|no_rounding_mode": div,
    "div|trunc_rounding": div,
    "eq": meta.equal,
    "equal": equal,
    "float_power": float_power,
    "floor_divide": meta.floor_divide,
    "fmax": meta.fmax,
    "fmin": meta.fmin,
    "fmod": meta.fmod,
    "ge": meta.greater_equal,
    "gt": meta.greater,
    "heaviside": meta.heaviside,
    "hypot": meta.hypot,
    "isclose": meta.isclose,
    "ldexp": meta.ldexp,
    "le": meta.less_equal,
    "lerp": meta.lerp,
    "logaddexp": meta.logaddexp,
    "logaddexp2": meta.logaddexp2,
    "logical_and": meta.logical_and,
    "logical_or": meta.logical_or,
    "logical_xor": meta.logical_xor,
    "lt": meta.less,
    "max|binary": meta.maximum,
    "maximum": meta.maximum,
    "min|binary": meta.minimum,
    "minimum": meta.minimum,
    "mul": meta.multiply,
    "ne": meta.not_equal,
    "nextafter": meta.nextafter,
    "pow": meta.pow,
    "remainder": meta.remainder,
    "rsub": lambda input, other, alpha=1: sub(other, input, alpha=alpha),
    "sub": sub,
    "true_divide": meta.divide,
    "where": where,
    "xlogy": meta.xlogy,
}
