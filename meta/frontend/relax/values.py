"""The registry of Relax's converters, which the families in `converters/` fill; and TVM's
constants, attributes, types and scalar expressions as values of Python and of `meta`.

Names of operators are TVM's without the leading "relax.", as "nn.conv2d". Besides arrays and
symbols, positional arguments may be numbers, text, `Shape`s, tuples of these, and None for
`null_value`. To convert a further operator, write a function in the family file of `converters/`
that fits (see `meta.frontend.core.converter`).

Extents of shapes are scalar expressions, which are computed from the extents of the arguments. To
support a further kind of them, add it to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.relax import ShapeExpr, ShapeType, TensorType

from meta import op
from meta.base.device import Device
from meta.base.dtype import canonical, is_float
from meta.base.errors import FormatError, MetaError
from meta.frontend.core import Converters, Unconvertible
from meta.ir import UNKNOWN
from meta.ir import TensorType as MetaTensorType
from meta.runtime.ndarray import array, ndarray

relax = Converters("relax")
ONLY_LOOPS = "of a function in TIR only loops are left, which are not converted"


class RelaxError(FormatError):
    """A Relax program that cannot be converted."""


def constant(value: Any) -> ndarray:
    """Return a `tvm.runtime.Tensor` as an array; Unconvertible for another dtype."""
    dtype_of(value.dtype)
    return array(value.numpy())


def dtype_of(dtype: Any) -> str:
    """Return a TVM dtype's name here; Unconvertible if there is none."""
    try:
        return canonical(str(dtype))
    except MetaError:
        raise Unconvertible(f"arrays have no dtype {dtype}") from None


def attributes(attrs: Any) -> dict[str, Any]:
    """Return a call's attributes, all of them, as plain Python values."""
    if attrs is None:
        return {}
    fields = type(attrs).__tvm_ffi_type_info__.fields
    return {f.name: plain_value(getattr(attrs, f.name)) for f in fields}


def plain_value(value: Any) -> Any:
    """Return an attribute's value as plain Python, a dtype by its name; others stay as they are."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if value.ty.dtype == "bool" else int(value.value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if isinstance(value, ir.StringImm):
        return str(value.value)
    if isinstance(value, tvm_ffi.dtype):
        return "" if str(value) in ("void", "") else str(value)
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return tuple(plain_value(v) for v in value)
    if isinstance(value, tvm_ffi.Map | dict):
        return {plain_value(k): plain_value(v) for k, v in value.items()}
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    return value


def tensor_type(type_: Any, extent: Callable[[Any], Any]) -> MetaTensorType | None:
    """Return a declared tensor type; None for other types, and where the shape is not known."""
    if not isinstance(type_, TensorType) or not isinstance(type_.shape, ShapeExpr):
        return None
    try:
        shape = tuple(extent(e) for e in type_.shape.values)
        return MetaTensorType(shape, dtype_of(type_.dtype))
    except Unconvertible:
        return None


def declared_shape(type_: Any) -> Any:
    """Return the extents that a type declares, as expressions of TVM; None if it declares none."""
    if isinstance(type_, TensorType):
        return type_.shape.values if isinstance(type_.shape, ShapeExpr) else None
    return type_.values if isinstance(type_, ShapeType) else None


RULES: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a - a // b * b,
    tirx.Div: lambda a, b: a / b if isinstance(a, float) else _truncated_quotient(a, b),
    tirx.Mod: lambda a, b: a - _truncated_quotient(a, b) * b,
    tirx.Max: lambda a, b: a if a >= b else b,
    tirx.Min: lambda a, b: a if a <= b else b,
    tirx.EQ: lambda a, b: a == b,
    tirx.NE: lambda a, b: a != b,
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.GT: lambda a, b: a > b,
    tirx.GE: lambda a, b: a >= b,
    tirx.And: lambda a, b: a and b,
    tirx.Or: lambda a, b: a or b,
}
"""Expressions with two operands ``a`` and ``b``."""


class Shape(tuple[Any, ...]):
    """The value of a Relax shape: extents, as opposed to a tuple of arrays."""


@dataclass(frozen=True)
class RuntimeShape:
    """A Relax shape of which only the number of axes is known: ``vector`` holds the extents."""

    vector: Any

    @property
    def extents(self) -> tuple[RuntimeExtent, ...]:
        """The extents, one by one."""
        return tuple(RuntimeExtent(self.vector, i) for i in range(self.vector.shape[0]))


@dataclass(frozen=True)
class RuntimeExtent:
    """One extent of a `RuntimeShape`."""

    vector: Any
    place: int

    @property
    def tensor(self) -> Any:
        """The extent as a vector of one element."""
        return op.strided_slice(self.vector, (self.place,), (self.place + 1,))


def shape_of_extents(values: Sequence[Any], device: Device) -> Shape | RuntimeShape:
    """Return the shape with these extents; a vector of them is made on the device."""
    if not any(isinstance(v, RuntimeExtent) for v in values):
        return Shape(values)
    parts = [
        v.tensor if isinstance(v, RuntimeExtent) else array([v], "int64", device=device)
        for v in values
    ]
    return RuntimeShape(op.concat(tuple(parts), 0))


@dataclass(frozen=True)
class Frame:
    """A function or block under way: the values of variables, symbolic extents among them."""

    values: dict[Any, Any] = field(default_factory=dict)

    def block(self) -> Frame:
        """Return a frame for a block or function inside, which sees what is here."""
        return Frame(dict(self.values))

    def match(self, shape: Any, actual: tuple[Any, ...]) -> Any:
        """Bind the variables of a declared shape; return an extent that differs, or None."""
        later = []
        for declared, extent in zip(shape, actual, strict=True):
            if isinstance(declared, ir.Var) and declared not in self.values:
                self.values[declared] = extent
            else:
                later.append((declared, extent))
        for declared, extent in later:
            value = self.extent(declared)
            if isinstance(value, int) and isinstance(extent, int) and value != extent:
                return declared
        return None

    def extent(self, expr: Any) -> Any:
        """Compute a scalar expression, a number or symbolic dimension; Unconvertible otherwise."""
        if isinstance(expr, int | float | tirx.IntImm | tirx.FloatImm):
            return plain_value(expr)
        if isinstance(expr, ir.Var):
            if expr not in self.values:
                raise Unconvertible(f"the extent {expr.name} is not known")
            if self.values[expr] is UNKNOWN:
                raise Unconvertible(f"the extent {expr.name} depends on the values of arrays")
            return self.values[expr]
        if isinstance(expr, tirx.Cast):
            value = self.extent(expr.value)
            kind = float if is_float(str(expr.ty.dtype)) else int
            return kind(value) if isinstance(value, int | float) else value
        if isinstance(expr, tirx.Select):
            chosen = expr.true_value if self.extent(expr.condition) else expr.false_value
            return self.extent(chosen)
        if isinstance(expr, tirx.Not):
            return not self.extent(expr.a)
        rule = RULES.get(type(expr))
        if rule is None:
            raise Unconvertible(f"the extent {expr} is computed by {type(expr).__name__}")
        operands = self.extent(expr.a), self.extent(expr.b)
        if any(isinstance(v, RuntimeExtent) for v in operands):
            raise Unconvertible(f"the extent {expr} depends on the values of inputs")
        return rule(*operands)


def _truncated_quotient(a: Any, b: Any) -> Any:
    """Divide towards zero, which for extents is the same as downwards."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a // b
