"""Functions of the elements of several tensors: arithmetic, comparisons, Python's operators."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import real
from tools.torch_samples.decline import decline_if


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
    quotient = meta.divide(input, other)
    return quotient if rounding_mode is None else meta.trunc(quotient)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Bound below, then above; by numbers or tensors."""
    numbers = [isinstance(bound, int | float) for bound in (min, max)]
    if all(numbers):
        return meta.clip(input, min, max)
    y = input if min is None else meta.maximum(input, min)
    return y if max is None else meta.minimum(y, max)


def isclose(
    input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Equal, or as near as asked, and, if asked, both NaN."""
    near = meta.abs(input - other) <= atol + rtol * meta.abs(other)
    close = (input == other) | (near & meta.isfinite(other))
    return close | (meta.isnan(input) & meta.isnan(other)) if equal_nan else close


def ignoring_nan(function: Any) -> Any:
    """Return fmax or fmin: of a number and a NaN the number."""

    def of_two(input: Any, other: Any) -> Any:
        both = function(input, other)
        return meta.where(meta.isnan(input), other, meta.where(meta.isnan(other), input, both))

    return of_two


def fmod(input: Any, other: Any) -> Any:
    """The remainder with the sign of the dividend."""
    return meta.where(input < 0, -1, meta.ones_like(input)) * meta.mod(meta.abs(input), abs(other))


def xlogy(input: Any, other: Any) -> Any:
    """x log(y), 0 where x is 0 and y not NaN."""
    nothing = meta.logical_and(meta.equal(input, 0), meta.logical_not(meta.isnan(other)))
    return meta.where(nothing, 0, input * meta.log(meta.where(nothing, 1, other)))


def xlog1py(input: Any, other: Any) -> Any:
    """x log(1 + y), 0 where x is 0 and y not NaN."""
    nothing = meta.logical_and(meta.equal(input, 0), meta.logical_not(meta.isnan(other)))
    return meta.where(nothing, 0, input * meta.log1p(meta.where(nothing, 0, other)))


def logaddexp(input: Any, other: Any) -> Any:
    """log(exp(x) + exp(y)), without overflow."""
    larger = meta.maximum(input, other)
    equal = meta.logical_and(meta.equal(input, other), meta.isinf(input))
    distance = meta.where(equal, 0, meta.abs(input - other))
    return meta.where(equal, larger, larger + meta.log1p(meta.exp(-distance)))


def logaddexp2(input: Any, other: Any) -> Any:
    """log2(2**x + 2**y), without overflow."""
    return logaddexp(input * math.log(2), other * math.log(2)) / math.log(2)


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """input + weight * (end - input)."""
    return input + weight * (end - input)


def where(input: Any, condition: Any, other: Any) -> Any:
    """Either of two, as the condition says."""
    return meta.where(condition, input, other)


def heaviside(input: Any, values: Any) -> Any:
    """0 below 0, 1 above, ``values`` at 0."""
    step = meta.cast_like(meta.greater(input, 0), input)
    return meta.where(meta.equal(input, 0), values, step)


def copysign(input: Any, other: Any) -> Any:
    """The magnitude of one with the sign of the other."""
    if isinstance(other, float):
        return meta.abs(real(input)) * math.copysign(1, other)
    below = meta.less(meta.where(meta.equal(other, 0), 1 / real(other), real(other)), 0)
    magnitude = meta.abs(real(input))
    return meta.where(below, -magnitude, magnitude)


def float_power(input: Any, exponent: Any) -> Any:
    """The power in float64."""
    double = [meta.cast(v, "float64") if hasattr(v, "dtype") else v for v in (input, exponent)]
    return meta.power(*double)


def ldexp(input: Any, other: Any) -> Any:
    """x * 2**y."""
    return meta.multiply(input, meta.power(2.0, real(other)))


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors are the same."""
    return input.shape == other.shape and bool(meta.all(meta.equal(input, other)))


def allclose(input: Any, other: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether all elements are close."""
    return bool(meta.all(isclose(input, other, *args, **kwargs)))


def hypot(input: Any, other: Any) -> Any:
    """The length of a vector (x, y)."""
    decline_if(input.dtype != other.dtype, "two dtypes")
    return meta.sqrt(input * input + other * other)


ADAPTERS = {
    "__radd__": lambda input, other: other + input,
    "__rand__": lambda input, other: meta.bitwise_and(other, input),
    "__rdiv__": lambda input, other: other / input,
    "__rmod__": lambda input, other: meta.mod(other, input),
    "__rmul__": lambda input, other: other * input,
    "__ror__": lambda input, other: meta.bitwise_or(other, input),
    "__rpow__": lambda input, other: meta.power(other, input),
    "__rsub__": lambda input, other: meta.subtract(other, input),
    "__rxor__": lambda input, other: meta.bitwise_xor(other, input),
    "add": add,
    "addcdiv": lambda input, a, b, *, value=1: input + value * (a / b),
    "addcmul": lambda input, a, b, *, value=1: input + value * (a * b),
    "allclose": allclose,
    "atan2": meta.atan2,
    "bitwise_and": meta.bitwise_and,
    "bitwise_left_shift": meta.left_shift,
    "bitwise_or": meta.bitwise_or,
    "bitwise_right_shift": meta.right_shift,
    "bitwise_xor": meta.bitwise_xor,
    "clamp": clamp,
    "clamp_max": meta.minimum,
    "clamp_min": meta.maximum,
    "copysign": copysign,
    "div|floor_rounding": div,
    "div|no_rounding_mode": div,
    "div|trunc_rounding": div,
    "eq": meta.equal,
    "equal": equal,
    "float_power": float_power,
    "floor_divide": meta.floor_divide,
    "fmax": ignoring_nan(meta.maximum),
    "fmin": ignoring_nan(meta.minimum),
    "fmod": fmod,
    "ge": meta.greater_equal,
    "gt": meta.greater,
    "heaviside": heaviside,
    "hypot": hypot,
    "isclose": isclose,
    "ldexp": ldexp,
    "le": meta.less_equal,
    "lerp": lerp,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
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
    "pow": meta.power,
    "remainder": meta.mod,
    "rsub": lambda input, other, alpha=1: sub(other, input, alpha=alpha),
    "special.xlog1py": xlog1py,
    "sub": sub,
    "true_divide": meta.divide,
    "where": where,
    "xlogy": xlogy,
}
