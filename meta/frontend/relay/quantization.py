"""Arithmetic of quantized tensors as Relay's compiler lowered it: what the qnn families share.

A quantized tensor ``q`` stands for ``scale * (q - zero)``. Scale and zero point are numbers, or
vectors with an entry per channel, constants of the program (then what is computed of them is, too)
or not. `scale_of` and `zero_of` read them; the functions take what these return.
"""

from __future__ import annotations

from math import floor, frexp, isfinite

import numpy as np

from meta import op
from meta.base.dtype import bits
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import broadcast_along as vector_along
from meta.frontend.core.arithmetic import rounded
from meta.runtime.ndarray import array

QUANTIZED = ("int8", "uint8", "int16", "uint16", "int32")
ROUNDING = {"None": "upward", "UPWARD": "upward", "TONEAREST": "nearest"}
COMPUTE_DTYPES = {"None": "int64", "int64": "int64", "float32": "float32", "float64": "float64"}


def scale_of(tensor, attribute=None, name="scale"):
    """Return a scale as a float if it is known; TVM 0.6 states ``attribute`` in its place."""
    return _parameter(tensor, attribute, name, float)


def zero_of(tensor, attribute=None, name="zero point"):
    """Return a zero point as an int if it is one known number, otherwise the array or symbol."""
    return _parameter(tensor, attribute, name, int)


def _parameter(tensor, attribute, name, number):
    if tensor is None:
        if attribute is None:
            raise Unconvertible(f"the {name} is neither an argument nor an attribute")
        return number(attribute)
    value = constant_value(tensor)
    return number(value.tensor.item()) if value is not None and value.size == 1 else tensor


def fixed_point(value):
    """Return the fixed-point number nearest to ``value``: see `meta.op.fixed_point_number`."""
    if not isfinite(value):
        raise Unconvertible(f"a ratio of scales is {value}")
    fraction, shift = frexp(value)
    whole = floor(abs(fraction) * 2**31 + 0.5)
    if whole == 2**31:
        whole, shift = whole // 2, shift + 1
    return (whole if value >= 0 else -whole), shift


def broadcast_along(value, ndim, axis):
    """Return a number as it is, and a vector as one along an axis of tensors of ``ndim`` axes."""
    if isinstance(value, int | float) or value.ndim == 0:
        return value
    if all(e == 1 for e in value.shape):
        return op.reshape(value, ())
    if value.ndim != 1:
        raise Unconvertible(f"a scale or zero point of {value.ndim} axes is not supported")
    if ndim and not -ndim <= axis < ndim:
        raise Unconvertible(f"axis {axis} is none of {ndim} axes")
    return vector_along(value, ndim, axis)


def subtract_zero_point(x, zero, axis=-1, dtype="int32"):
    """Return x - zero in ``dtype``."""
    return minus(op.astype(x, dtype), zero, axis)


def _apply_zero_point(by, x, zero, axis):
    if isinstance(zero, int):
        return x if zero == 0 else by(x, zero)
    return by(x, op.astype(broadcast_along(zero, x.ndim, axis), x.dtype))


def minus(x, zero, axis=-1):
    """Return x - zero in the dtype of x."""
    return _apply_zero_point(op.subtract, x, zero, axis)


def plus(x, zero, axis=-1):
    """Return x + zero in the dtype of x."""
    return _apply_zero_point(op.add, x, zero, axis)


def times(a, b):
    """Return the product of two scales, rounded to float32 as the tensors that hold them are."""
    if isinstance(a, float) and isinstance(b, float):
        return float(np.float32(a) * np.float32(b))
    return op.multiply(a, b)


def saturate(x, dtype):
    """Return whole numbers as integers, beyond the dtype as its nearest; a NaN as its largest."""
    if dtype not in QUANTIZED:
        raise Unconvertible(f"{dtype} is no dtype of quantized values")
    size = bits(dtype)
    signed = dtype.startswith("int")
    low = -(2 ** (size - 1)) if signed else 0
    high = low + 2**size - 1
    if x.dtype.startswith(("int", "uint")):
        return op.astype(op.clip(x, low, high), dtype)
    # Comparisons, as the compiled code had them: they are false for a NaN.
    below = float(high) if size < 32 else float(high + 1)
    x = op.where(op.less(x, below), x, below)
    x = op.where(op.greater(x, float(low)), x, float(low))
    if size < 32:
        return op.astype(x, dtype)
    return op.astype(op.minimum(op.astype(x, "int64"), high), dtype)


def quantize(x, scale, zero, dtype, axis=-1):
    """Return floats as integers, round(x / scale) + zero, saturated."""
    whole = rounded(op.divide(x, broadcast_along(scale, x.ndim, axis)))
    return saturate(plus(whole, zero, axis), dtype)


def dequantize(x, scale, zero, axis=-1, dtype="float32"):
    """Return integers as floats, scale * (x - zero)."""
    real = op.multiply(
        op.astype(subtract_zero_point(x, zero, axis), "float32"),
        broadcast_along(scale, x.ndim, axis),
    )
    if dtype == "float32":
        return real
    if dtype == "float16":
        real = op.clip(real, -65504.0, 65504.0)
    return op.astype(real, dtype)


def requantize(
    x, scale, zero, to_scale, to_zero, dtype, device, axis=-1, rounding="None", computed="None"
):
    """Return a quantized tensor with another scale and zero point, as ``dtype``, saturated.

    axis: along which ``scale`` and ``zero`` lie. rounding, computed: Relay's attributes "rounding"
    and "compute_dtype": of halves, and whether ratios are fixed-point numbers or floats.
    """
    if rounding not in ROUNDING or computed not in COMPUTE_DTYPES:
        raise Unconvertible(f"rounding={rounding!r} with compute_dtype={computed!r} is unknown")
    if isinstance(to_scale, float) and to_scale == 0:
        raise Unconvertible("the scale of the result is 0")
    if COMPUTE_DTYPES[computed] != "int64":
        kind = COMPUTE_DTYPES[computed]
        scaled = _by_floats(x, scale, zero, to_scale, to_zero, axis, ROUNDING[rounding], kind)
        return saturate(scaled, dtype)
    factor, shift = (
        broadcast_along(v, x.ndim, axis) for v in _fixed_point_ratio(scale, to_scale, device)
    )
    scaled = op.fixed_point_multiply(
        subtract_zero_point(x, zero, axis), factor, shift, ROUNDING[rounding]
    )
    scaled = plus(scaled, to_zero)
    return scaled if dtype == "int32" else saturate(scaled, dtype)


def _fixed_point_ratio(scale, to_scale, device):
    """Return scale / to_scale as (multiplier, shift): numbers or vectors."""
    if isinstance(to_scale, float) and isinstance(scale, float):
        return fixed_point(scale / to_scale)
    values = constant_value(scale)
    if isinstance(to_scale, float) and values is not None:
        pairs = [fixed_point(float(v) / to_scale) for v in values.numpy().reshape(-1)]
        factors, shifts = (np.array(c, np.int32) for c in zip(*pairs, strict=True))
        return array(factors, device=device), array(shifts, device=device)
    factor, shift = op.fixed_point_number(_ratio(scale, to_scale))
    return factor, shift


def _ratio(scale, to_scale):
    """Return scale / to_scale in float64."""
    if isinstance(scale, float) and isinstance(to_scale, float):
        return scale / to_scale
    wide = [s if isinstance(s, float) else op.astype(s, "float64") for s in (scale, to_scale)]
    return op.divide(*wide)


def _by_floats(x, scale, zero, to_scale, to_zero, axis, rounding, computed):
    """Return a requantized tensor as whole floats."""
    value, ratio = minus(op.astype(x, computed), zero, axis), _ratio(scale, to_scale)
    if computed == "float32":
        # The product of two float32 is exact in float64: it is rounded once, whatever a compiler
        # makes of a product and a sum.
        ratio = (
            float(np.float32(ratio)) if isinstance(ratio, float) else op.astype(ratio, "float32")
        )
        wide = ratio if isinstance(ratio, float) else op.astype(ratio, "float64")
        product = op.multiply(op.astype(value, "float64"), broadcast_along(wide, x.ndim, axis))
        value = op.astype(product, "float32")
    else:
        value = op.multiply(value, broadcast_along(ratio, x.ndim, axis))
    value = plus(value, to_zero)
    if rounding == "upward":
        return op.floor(op.add(value, 0.5))
    return op.multiply(op.floor(op.add(op.abs(value), 0.5)), op.sign(value))
