"""ONNX's tensors and dtypes as arrays of `meta`, on the device of the program; and its sub-byte
dtypes, of which arrays have none: how they are held and cast.

A value of such a dtype is a `NarrowValue`: an array of the narrowest dtype that has all its
numbers, so that int4 is held in int8, and its own name. What only moves elements moves what is
held; `cast_narrow` casts to these dtypes and from them. A model takes and returns the arrays that
are held.

Casts follow ONNX's definition of Cast: floating point rounds halves to the even number, and what is
beyond the range is the largest number where it saturates, else NaN, or infinity where the dtype has
it; integers keep their low bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper, numpy_helper

from meta import op
from meta.base.device import Device
from meta.base.dtype import FLOAT8, TO_NUMPY, bits, canonical, is_float, is_real
from meta.base.errors import ArgumentError
from meta.frontend.core import Unconvertible
from meta.runtime.ndarray import array, ndarray


def dtype_of(kind: int) -> str:
    """Return the name of a dtype by its number in `onnx.TensorProto`; Unconvertible if arrays have
    no such dtype.
    """
    try:
        return canonical(helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, ArgumentError):
        raise Unconvertible(f"arrays have no dtype {_kind_name(kind)}") from None


def _kind_name(kind: int) -> str:
    known = onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(kind)) if kind in known else str(kind)


def numpy_of(tensor: Any) -> Any:
    """Return an `onnx.TensorProto` or `onnx.SparseTensorProto` as an array of NumPy."""
    if isinstance(tensor, onnx.SparseTensorProto):
        return _dense(tensor)
    if (
        tensor.data_type != onnx.TensorProto.STRING
        and name_of(tensor.data_type) not in CARRIER_DTYPES
    ):
        dtype_of(tensor.data_type)
    return numpy_helper.to_array(tensor)


def array_of(tensor: Any, device: Device) -> ndarray | NarrowValue | Text:
    """Return a tensor of a file as an array; Unconvertible for a dtype that arrays have not."""
    return value_of(numpy_of(tensor), device)


def value_of(values: Any, device: Device) -> ndarray | NarrowValue | Text:
    """Return an array of NumPy, texts or numbers of a dtype that arrays have not included."""
    if values.dtype.kind in "OUS":
        return Text(values.astype(object))
    dtype = str(values.dtype.name)
    if dtype in CARRIER_DTYPES:
        return NarrowValue(
            array(values.astype(TO_NUMPY[CARRIER_DTYPES[dtype]]), device=device), dtype
        )
    # What is read is a view of the file's bytes.
    return array(np.array(values, order="C"), device=device)


def _dense(sparse: Any) -> Any:
    """Return a sparse tensor with its zeros. Indices are flat, or one row of them per value."""
    values, indices = numpy_of(sparse.values), numpy_of(sparse.indices)
    shape = tuple(sparse.dims)
    result = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return result


@dataclass(frozen=True)
class Text:
    """An array of texts.

    Attributes
    ----------
    values: the texts, a NumPy array of the dtype object.
    """

    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return int(self.values.ndim)

    def to(self, *, device: Device) -> Text:
        """Return itself: text is on no device."""
        return self


INTEGERS = {"int4": (4, "int8"), "uint4": (4, "uint8"), "int2": (2, "int8"), "uint2": (2, "uint8")}
"""By name: the bits, and in which dtype they are held."""


@dataclass(frozen=True)
class Format:
    """A floating point dtype of a few bits.

    Attributes
    ----------
    held: in which dtype it is held. mantissa: bits behind the point. least: the exponent of its
    smallest normal number. largest: its largest number. has_nan, has_zero_sign: whether it has NaN
    and -0.
    """

    held: str
    mantissa: int
    least: int
    largest: float
    has_nan: bool = True
    has_zero_sign: bool = True


FORMATS = {
    "float4_e2m1fn": Format("float8_e4m3fn", 1, 0, 6.0, has_nan=False),
    "float6_e2m3fn": Format("float8_e4m3fn", 3, 0, 7.5, has_nan=False),
    "float6_e3m2fn": Format("float8_e4m3fn", 2, -2, 28.0, has_nan=False),
    "float8_e4m3fn": Format("float8_e4m3fn", 3, -6, 448.0),
    "float8_e4m3fnuz": Format("float16", 3, -7, 240.0, has_zero_sign=False),
    "float8_e5m2fnuz": Format("float16", 2, -15, 57344.0, has_zero_sign=False),
}
SCALE = "float8_e8m0fnu"
"""Powers of two, held in float32: from 2 ** -127 to 2 ** 127, and NaN."""
CARRIER_DTYPES = {
    **{name: held for name, (_, held) in INTEGERS.items()},
    **{name: f.held for name, f in FORMATS.items() if name not in FLOAT8},
    SCALE: "float32",
}
"""By the name of a dtype that arrays do not have: that in which it is held."""


@dataclass(frozen=True)
class NarrowValue:
    """A value of a dtype that arrays do not have.

    Attributes
    ----------
    held: the array or symbol with its numbers. dtype: its name, "int4".
    """

    held: Any
    dtype: str

    @property
    def shape(self) -> Any:
        """The extents."""
        return self.held.shape

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return int(self.held.ndim)

    def to(self, *, device: Device) -> NarrowValue:
        """Return the value on a device."""
        return NarrowValue(self.held.to(device=device), self.dtype)


def carrier(value: Any) -> Any:
    """Return what holds a value; one that is not narrow itself; of containers each of theirs."""
    if isinstance(value, tuple | list):
        return type(value)(map(carrier, value))
    return value.held if isinstance(value, NarrowValue) else value


def narrow_dtypes(value: Any) -> Any:
    """Return the dtypes of narrow values, and None of others; of containers each of theirs."""
    if isinstance(value, tuple | list):
        return type(value)(map(narrow_dtypes, value))
    return value.dtype if isinstance(value, NarrowValue) else None


def with_narrow_dtypes(value: Any, dtypes: Any) -> Any:
    """Return what holds values as the values of which `narrow_dtypes` returned these dtypes."""
    if isinstance(value, tuple | list):
        return type(value)(map(with_narrow_dtypes, value, dtypes))
    return value if dtypes is None else NarrowValue(value, dtypes)


def as_narrow(value: Any, dtype: str) -> Any:
    """Return an array as a value of a dtype, which it holds."""
    return NarrowValue(value, dtype) if dtype in CARRIER_DTYPES else value


def as_declared(type_: TypeProto, value: Any) -> Any:
    """Return an input as the value of the type that a graph declares for it: a tuple or list as a
    sequence, and numbers that a narrow dtype does not have cast to it.
    """
    if value is None:
        return None
    if type_.HasField("optional_type"):
        return as_declared(type_.optional_type.elem_type, value)
    if type_.HasField("sequence_type"):
        if not isinstance(value, tuple | list):
            raise Unconvertible("it is a sequence: a list of arrays")
        return [as_declared(type_.sequence_type.elem_type, v) for v in value]
    if type_.HasField("tensor_type"):
        dtype = name_of(type_.tensor_type.elem_type)
        return cast_narrow(value, dtype) if dtype in CARRIER_DTYPES else value
    return value


def name_of(kind: int) -> str:
    """Return the name of a dtype by its number in `onnx.TensorProto`, also of a narrow one."""
    if kind == TensorProto.STRING:
        raise Unconvertible("arrays have no texts")
    try:
        return str(helper.tensor_dtype_to_np_dtype(kind).name)
    except KeyError:
        raise Unconvertible(f"there is no dtype of the number {kind}") from None


def bits_of(dtype: str) -> int:
    """Return the width of a dtype, narrow or not; bool has 8 bits."""
    if dtype in INTEGERS:
        return INTEGERS[dtype][0]
    if dtype in CARRIER_DTYPES:
        return int(dtype[5])  # float4_e2m1fn
    return bits(dtype)


def cast_narrow(value: Any, dtype: str, saturate: bool = True, round_mode: str = "up") -> Any:
    """Return a value in a dtype, by names as `name_of` gives them.

    saturate: for floating point dtypes of 8 bits. round_mode: "up", "down" or "nearest", for
    float8_e8m0fnu.
    """
    x = carrier(value)
    if value.dtype == dtype:
        return value
    if dtype in INTEGERS:
        return NarrowValue(_low_bits(x, dtype), dtype)
    if dtype == SCALE:
        return NarrowValue(_power_of_two(x, saturate, round_mode), dtype)
    if dtype in FORMATS and not (dtype in FLOAT8 and saturate):
        wide = x if x.dtype == "float64" else op.astype(x, "float32")
        rounded = _round_to_format(wide, FORMATS[dtype], saturate)
        return as_narrow(op.astype(rounded, FORMATS[dtype].held), dtype)
    if dtype == "float8_e5m2" and saturate:
        wide = x if is_float(x.dtype) and x.dtype != "float16" else op.astype(x, "float32")
        return op.astype(op.clip(wide, -57344.0, 57344.0), dtype)
    if x.dtype in FLOAT8 and not is_real(dtype):
        x = op.astype(x, "float32")
    return op.astype(x, dtype)


def _low_bits(x: Any, dtype: str) -> Any:
    bits, held = INTEGERS[dtype]
    if x.dtype in FLOAT8:
        x = op.astype(x, "float32")
    low = op.bitwise_and(op.astype(x, "int32"), (1 << bits) - 1)
    if dtype.startswith("int"):
        sign = 1 << (bits - 1)
        low = op.subtract(op.bitwise_xor(low, sign), sign)
    return op.astype(low, held)


_EXPONENT = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}
"""By dtype: that of its bits, and which of these are the exponent."""


def _round_to_format(x: Any, to: Format, saturate: bool) -> Any:
    """Return float32 or float64 rounded to the numbers of a format.

    The bits of the exponent are a power of two as a number, and with the format's smallest they
    give the distance of its numbers there. So the quotient and the product below are exact.
    """
    bits, mask = _EXPONENT[x.dtype]
    # Infinity has no distance; four times the largest number is beyond the range as well.
    x = op.clip(x, -4.0 * to.largest, 4.0 * to.largest)
    power = op.reinterpret(op.bitwise_and(op.reinterpret(x, bits), mask), x.dtype)
    distance = op.multiply(op.maximum(power, 2.0**to.least), 2.0**-to.mantissa)
    rounded = op.multiply(op.round(op.divide(x, distance)), distance)
    if saturate or not to.has_nan:
        rounded = op.clip(rounded, -to.largest, to.largest)
    else:
        rounded = op.where(op.greater(op.abs(rounded), to.largest), float("nan"), rounded)
    if not to.has_nan:
        rounded = op.where(op.isnan(x), 0.0, rounded)
    return rounded if to.has_zero_sign else op.add(rounded, 0.0)


def _power_of_two(x: Any, saturate: bool, round_mode: str) -> Any:
    """Return powers of two for numbers, without their signs."""
    if round_mode not in ("up", "down", "nearest"):
        raise Unconvertible(f"round_mode={round_mode!r} is unknown", "up, down or nearest")
    wide = op.abs(op.astype(op.astype(x, "float32") if x.dtype in FLOAT8 else x, "float64"))
    bits = op.reinterpret(wide, "int64")
    exponent = op.subtract(op.bitwise_right_shift(bits, 52), 1023)
    fraction = op.bitwise_and(bits, (1 << 52) - 1)
    if round_mode != "down":
        enough = 1 if round_mode == "up" else 1 << 51
        exponent = op.add(exponent, op.astype(op.greater_equal(fraction, enough), "int64"))
    within = op.clip(exponent, -127, 127)
    power = op.reinterpret(op.bitwise_left_shift(op.add(within, 1023), 52), "float64")
    lost = op.isnan(wide)
    if not saturate:
        lost = op.logical_or(lost, op.not_equal(exponent, within))
    return op.astype(op.where(lost, float("nan"), power), "float32")


ACCEPTS_NARROW = frozenset(
    (
        *("BitCast", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "QLinearMatMul"),
        *("Identity", "Optional", "OptionalGetElement", "OptionalHasElement"),
        *("SequenceConstruct", "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength"),
        *("If", "SequenceMap"),
    )
)
"""Operators whose converters take narrow values."""
MOVES_ELEMENTS = frozenset(
    (
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"),
        "Unsqueeze",
    )
)
"""Operators that move elements, whatever these are."""
READS_SHAPE_ONLY = frozenset(("Shape", "Size"))
"""Operators that look at the shape only."""


def apply_narrow(
    name: str, apply: Callable[[tuple[Any, ...]], Any], inputs: tuple[Any, ...]
) -> Any:
    """Return ``apply(inputs)``, the converter of an operator, for inputs of which some are narrow.

    Raises Unconvertible for an operator that has no meaning for them here.
    """
    dtypes = {i.dtype for i in inputs if isinstance(i, NarrowValue)}
    if not dtypes or name in ACCEPTS_NARROW:
        return apply(inputs)
    if name in READS_SHAPE_ONLY:
        return apply(carrier(inputs))
    if name not in MOVES_ELEMENTS or len(dtypes) > 1:
        raise Unconvertible(
            f"there is no arithmetic of {' and '.join(sorted(dtypes))}",
            hint="Cast or DequantizeLinear to a dtype that has arithmetic",
        )
    (dtype,) = dtypes
    found = apply(carrier(inputs))
    if isinstance(found, tuple):
        return tuple(NarrowValue(part, dtype) for part in found)
    return NarrowValue(found, dtype)
