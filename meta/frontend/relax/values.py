"""TVM's constants, attributes and types as values of Python and of `meta`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.relax import ShapeExpr, ShapeType, TensorType

from meta.base.dtype import canonical
from meta.base.errors import MetaError
from meta.frontend.core import Unconvertible
from meta.ir import TensorType as MetaTensorType
from meta.runtime.ndarray import array, ndarray


def constant(value: Any) -> ndarray:
    """Return a `tvm.runtime.Tensor` as an array of its own memory; Unconvertible for a dtype that
    arrays do not have.
    """
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
    return {f.name: plain(getattr(attrs, f.name)) for f in fields}


def plain(value: Any) -> Any:
    """Return an attribute's value: None, a number, text, a dtype's name, tuples and dicts of them;
    what has no such form stays as it is.
    """
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
        return tuple(plain(v) for v in value)
    if isinstance(value, tvm_ffi.Map | dict):
        return {plain(k): plain(v) for k, v in value.items()}
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
