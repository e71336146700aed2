"""Floats as integers of the same order, so that a maximum can be an integer maximum.

TVM's float maximum forgets a NaN that another element follows; as an integer, a NaN is the
largest (or smallest) key, and the reduction stays one that schedules know and LLVM vectorises.
Keys follow from the IEEE format: sign and magnitude become two's complement; both zeros are 0.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from meta.dialect.tvm.broadcast import computing

# By dtype: the integer of the same width, and the bits of infinity and of the usual NaN.
_FORMAT = {
    "float32": ("int32", 0x7F800000, 0x7FC00000),
    "float64": ("int64", 0x7FF0000000000000, 0x7FF8000000000000),
}

# Those of 16 bits: infinity and NaN in the high half of an int32.
_HIGH = {"float16": (0x7C000000, 0x7E000000), "bfloat16": (0x7F800000, 0x7FC00000)}
OF_16_BITS = (*_HIGH, "int16")
"""The dtypes that have a `high_key`."""


def key_dtype(dtype: str) -> str:
    """Return the integer dtype in which values of a dtype are compared."""
    wide = computing(dtype)
    return _FORMAT[wide][0] if wide in _FORMAT else wide


def key(value: Any, dtype: str, nan_is_largest: bool) -> Any:
    """Return the key of a value: an integer that is greater exactly if the value is."""
    integer, wide = key_dtype(dtype), computing(dtype)
    if wide not in _FORMAT:
        return value.astype(integer)
    infinity = _FORMAT[wide][1]
    bits = tirx.reinterpret(integer, value.astype(wide))
    magnitude = tirx.bitwise_and(bits, tirx.max_value(integer))
    ordered = tirx.Select(bits < 0, -magnitude, bits)
    extreme = nan_key(dtype, nan_is_largest)
    return tirx.Select(magnitude > tirx.const(infinity, integer), extreme, ordered)


def high_key(value: Any, dtype: str, nan_is_largest: bool) -> Any:
    """Return the key of a value of 16 bits in the high half of an int32.

    In plain arithmetic: of a choice CUDA's compiler makes branches, some for each element.
    """
    if dtype not in _HIGH:
        return value.astype("int32") * tirx.const(1 << 16, "int32")
    infinity, nan = (tirx.const(bits, "int32") for bits in _HIGH[dtype])
    largest = tirx.const(0x7FFF0000, "int32")
    if dtype == "bfloat16":
        # What TVM has of a bfloat16 that is computed in the same kernel is a float32, unrounded.
        bits = tirx.reinterpret("int32", value.astype("float32"))
        whole = tirx.min(tirx.bitwise_and(bits, tirx.const(0x7FFFFFFF, "int32")), largest)
        odd = tirx.bitwise_and(whole >> tirx.const(16, "int32"), tirx.const(1, "int32"))
        magnitude = tirx.bitwise_and(whole + odd + tirx.const(0x7FFF, "int32"), largest)
    else:
        high = tirx.reinterpret("uint16", value).astype("uint32") << tirx.const(16, "uint32")
        bits = tirx.reinterpret("int32", high)
        magnitude = tirx.bitwise_and(bits, largest)
    sign, is_nan = (
        tirx.shift_right(x, tirx.const(31, "int32")) for x in (bits, infinity - magnitude)
    )
    ordered = tirx.bitwise_xor(magnitude, sign) - sign
    extreme = nan if nan_is_largest else -nan
    kept = tirx.bitwise_and(tirx.bitwise_not(is_nan), ordered)
    return tirx.bitwise_or(kept, tirx.bitwise_and(is_nan, extreme))


def nan_key(dtype: str, nan_is_largest: bool) -> Any:
    """Return the key that every NaN of a floating dtype has."""
    integer, _, nan = _FORMAT[computing(dtype)]
    return tirx.const(nan if nan_is_largest else -nan, integer)


def value(key: Any, dtype: str) -> Any:
    """Return the value of which this is the key (0.0 for either zero)."""
    if dtype == "bool":
        return key != 0
    wide = computing(dtype)
    if wide not in _FORMAT:
        return key
    sign = tirx.min_value(key_dtype(dtype))
    bits = tirx.Select(key < 0, tirx.bitwise_or(-key, sign), key)
    return tirx.reinterpret(wide, bits).astype(dtype)
