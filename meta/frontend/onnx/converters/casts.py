"""Converters of changes of dtype: `Cast`, `CastLike`, `BitCast`."""

from __future__ import annotations

from onnx import TensorProto

from meta import op
from meta.base.dtype import FLOAT8, is_real, limits
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import dtype_of

_ROUNDS_UP_FROM = 464.0
"""Beyond this what is rounded to float8_e4m3fn is no number of it: halfway from 448 to 480."""


@onnx("Cast", op.cast, ignore=("round_mode",))
def cast(x, *, to, saturate, call):
    """``round_mode`` is of float8_e8m0fnu alone. Until opset 6 the dtype is a name."""
    kind = TensorProto.DataType.Value(to) if isinstance(to, str) else to
    return converted(x, dtype_of(kind), saturate)


@onnx("CastLike", op.cast, ignore=("round_mode",))
def cast_like(x, like, *, saturate):
    return converted(x, like.dtype, saturate)


def converted(x, dtype, saturate):
    """Return x in a dtype. What is beyond the range of float8 becomes its largest number with
    ``saturate``, and without it infinite, or NaN where there is no infinity.
    """
    if dtype not in FLOAT8 or x.dtype == dtype:
        return cast_to(x, dtype)
    wide = x if is_real(x.dtype) and x.dtype not in FLOAT8 else op.cast(x, "float32")
    most = float(limits(dtype).max)
    if saturate:
        return op.cast(op.clip(wide, -most, most), dtype)
    if dtype == "float8_e4m3fn":
        beyond = op.greater(op.abs(wide), _ROUNDS_UP_FROM)
        wide = op.where(beyond, op.full_like(wide, float("nan")), wide)
    return op.cast(wide, dtype)


@onnx("BitCast", op.reinterpret)
def bit_cast(x, *, to):
    dtype = dtype_of(to)
    if x.dtype == "bool":
        x = op.cast(x, "uint8")
    return op.reinterpret(x, dtype) if x.dtype != dtype else x
