"""Converters of changes of dtype: `Cast`, `CastLike`, `BitCast`; of dtypes of a few bits, too."""

from __future__ import annotations

from onnx import TensorProto

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.subbyte_dtypes import (
    FORMATS,
    SCALE,
    NarrowValue,
    bits_of,
    carrier,
    cast_narrow,
    name_of,
)

BECOMES = (op.astype, op.clip, op.round, op.reinterpret, op.where)


@onnx("Cast", *BECOMES)
def cast(x, *, to, saturate, round_mode):
    """Until opset 6 the dtype is a name."""
    kind = TensorProto.DataType.Value(to) if isinstance(to, str) else to
    return cast_narrow(x, name_of(kind), bool(saturate), round_mode)


@onnx("CastLike", *BECOMES)
def cast_like(x, like, *, saturate, round_mode):
    return cast_narrow(x, str(like.dtype), bool(saturate), round_mode)


@onnx("BitCast", op.reinterpret, op.astype)
def bit_cast(x, *, to):
    """Integers of a few bits keep their bits; floats of a few bits are held by their numbers."""
    dtype = name_of(to)
    if bits_of(x.dtype) != bits_of(dtype):
        raise Unconvertible(f"{x.dtype} and {dtype} are not of the same width")
    if x.dtype == dtype:
        return x
    by_number = [d for d in (x.dtype, dtype) if d == SCALE or (d in FORMATS and _is_wider(d))]
    if by_number:
        raise Unconvertible(f"the bits of {by_number[0]}, which is held by its numbers")
    if isinstance(x, NarrowValue):
        return cast_narrow(x, dtype)
    plain = op.astype(carrier(x), "uint8") if x.dtype == "bool" else x
    return op.reinterpret(plain, dtype) if plain.dtype != dtype else plain


def _is_wider(dtype):
    """Whether a floating point dtype of a few bits is held in another one."""
    return FORMATS[dtype].held != dtype
