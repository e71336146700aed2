"""Slots: one argument of an operator, as its annotation says, and how values of it are read.

Annotations give the kind of a slot:

* ``Tensor``: a tensor that is read; ``Tensor | None``: an optional one.
* ``Weight``: a tensor that is read and that a model learns, such as a convolution's kernel; a
  ``Tensor`` in all but the slot's role. ``Weight | None``: an optional one.
* ``tuple[Tensor, ...]``: a variable number of tensors.
* ``InOut``: a tensor that is read and written in place; ``InOut | None``: an optional one.
* ``tuple[InOut, ...]``: a variable number of tensors that are read and written in place.
* ``Scalar``: a Python number passed to the kernel at run time: no kernel is built per value. It
  takes the dtype of the result, and an error says so where that is of integers and has no such
  number. A number that takes another dtype says which: ``Annotated[Number, Takes("x1", "x2")]``.
* ``AnyScalar``: a Python number that takes no narrower dtype: it counts as it is.
* ``Scalar | Tensor``: either of the two.
* anything else is an attribute: bool, int, float, str, None, ``tuple[int, ...]``, ``DType``,
  ``DeviceName`` and unions of these; kernels are built for its value.

To add a kind of attribute, add a reader to `_READERS`.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union

import numpy as np

from meta.base import dtype as dtypes
from meta.base.device import Device, default_device
from meta.base.errors import MetaError, TypeInferError
from meta.ir.types import SymbolicDim, TensorType, Type

Tensor = TensorType
"""A tensor argument; a type function sees its `TensorType`."""
Weight = Annotated[TensorType, "weight"]
"""A tensor argument that a model learns."""
InOut = Annotated[TensorType, "in-out"]
"""A tensor argument that the operator also writes."""


@dataclass(frozen=True, slots=True, init=False)
class Takes:
    """Marks a run-time number in an annotation, and says which dtype it takes.

    That is the dtype of the first of ``slots`` in which a tensor stands, else of the result, or if
    that is not one tensor, of the first argument that is. With None for ``slots`` the number counts
    as it is, and its 64 bits are never narrowed.
    """

    slots: tuple[str, ...] | None

    def __init__(self, *slots: str | None) -> None:
        named = tuple(s for s in slots if s is not None)
        object.__setattr__(self, "slots", named if len(named) == len(slots) else None)


Scalar = Annotated[float | int | bool, Takes()]
"""A Python number whose value is given to the kernel at run time, in the result's dtype."""
AnyScalar = Annotated[float | int | bool, Takes(None)]
"""A Python number whose value is given to the kernel at run time, of whatever size it is."""
DType = Annotated[str, "dtype"]
"""A dtype attribute; any spelling is accepted and kept as the canonical name."""
DeviceName = Annotated[str, "device"]
"""A device attribute, kept as "cpu" or "cuda:N"."""
Ints = int | tuple[int, ...]
"""An int or several; a shape may have symbolic dimensions among them."""

NUMBERS = bool | int | float
INT_LIMIT = 2**63
REQUIRED = inspect.Parameter.empty


class ReadError(Exception):
    """A reader does not take this value."""


def _read_none(value: object) -> None:
    if value is not None:
        raise ReadError


def _reader(taken: Any, made: Callable[[Any], Any]) -> Callable[[object], Any]:
    """Return a reader of values of some types, each as ``made`` makes it."""

    def read(value: object) -> Any:
        if isinstance(value, taken):
            return made(value)
        raise ReadError

    return read


def _read_int(value: object) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return _within_64_bits(int(value))
    raise ReadError


def _within_64_bits(number: int) -> int:
    if not -INT_LIMIT <= number < INT_LIMIT:
        raise TypeInferError(
            "the number does not fit into 64 bits",
            expected="-2**63 <= number < 2**63",
            found=number
            if number.bit_length() < 1000
            else f"a number of {number.bit_length()} bits",
        )
    return number


def _read_float(value: object) -> float:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return float(_within_64_bits(int(value)))
    if isinstance(value, float | np.floating):
        return float(value)
    raise ReadError


def _ints(values: Sequence[object]) -> tuple[Any, ...]:
    return tuple(v if isinstance(v, SymbolicDim) else _read_int(v) for v in values)


def _read_number(value: object) -> bool | int | float:
    """Return a run-time number of exactly these types, whatever subclass or numpy scalar it is."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool):
        return number
    if isinstance(number, int):
        return _within_64_bits(int(number))
    if isinstance(number, float):
        return float(number)
    raise ReadError


_READERS: dict[Any, tuple[str, Callable[[object], Any]]] = {
    types.NoneType: ("None", _read_none),
    bool: ("bool", _reader(bool | np.bool_, bool)),
    int: ("int", _read_int),
    float: ("float", _read_float),
    str: ("str", _reader(str, str)),
    tuple[int, ...]: ("tuple of ints", _reader(tuple | list, _ints)),
    DType: ("dtype", dtypes.canonical),
    DeviceName: ("device", lambda value: str(Device(value))),
}
WHERE = "device"
"""The argument that says where a result is; left out, it is what a block around the call says."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument of an operator.

    ``kind`` is "tensor", "tensors", "scalar", "scalar or tensor" or "attribute". ``access`` is "RO"
    or "RW". ``takes``: of a number, as in `Takes`. ``role`` is "weight" of what a model learns, and
    "input" of all others.
    """

    name: str
    kind: str
    access: str
    optional: bool
    default: Any
    accepts: str
    readers: tuple[Callable[[object], Any], ...]
    takes: tuple[str, ...] | None = None
    role: str = "input"

    @property
    def has_default(self) -> bool:
        """Whether the argument may be left out."""
        return self.default is not REQUIRED

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor (or several) may stand here."""
        return self.kind in ("tensor", "tensors", "scalar or tensor")

    def fits_type(self, given: Any) -> bool:
        """Whether a type, a tuple of types or a literal is of the kind of the argument."""
        if isinstance(given, Type):
            return self.kind in ("tensor", "scalar or tensor")
        several = isinstance(given, tuple) and any(isinstance(each, Type) for each in given)
        return not several or self.kind == "tensors"

    def read(self, value: Any, lift: Callable[[Any], Any]) -> Any:
        """Return the canonical form of an argument; raise ReadError or a MetaError if it does not
        fit.
        """
        if value is None and self.optional:
            return None
        if self.kind == "attribute":
            for reader in self.readers:
                try:
                    return reader(value)
                except ReadError:
                    continue
            raise ReadError
        if value is None:
            raise ReadError
        if self.kind == "tensors":
            if not isinstance(value, tuple | list):
                raise ReadError
            return tuple(lift(v) for v in value)
        if self.kind != "tensor":
            if isinstance(value, np.generic | NUMBERS):
                return _read_number(value)
            if self.kind == "scalar":
                raise ReadError
        return lift(value)


def _default_of(default: str, name: str) -> Callable[[object], str]:
    """Return the reader of a dtype or device of which None is the default, as in NumPy."""

    def read(value: object) -> str:
        if value is not None:
            raise ReadError
        return str(default_device()) if name == WHERE else default

    return read


def _union_members(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return [m for a in typing.get_args(annotation) for m in _union_members(a)]
    return [annotation]


def _dtype_mark(annotation: Any) -> Takes | None:
    """Return which dtype a number of this annotation takes; None if it is of another kind."""
    marks = getattr(annotation, "__metadata__", ())
    return next((m for m in marks if isinstance(m, Takes)), None)


def slot_of(parameter: inspect.Parameter, annotation: Any) -> Slot:
    """Return the slot of a parameter; TypeError for an annotation, or a default, of no kind."""
    members = _union_members(annotation)
    optional = types.NoneType in members
    rest = [m for m in members if m is not types.NoneType]
    access, accepts = "RO", ""
    number, takes = next(
        ((m, t.slots) for m in rest if (t := _dtype_mark(m)) is not None), (None, None)
    )
    readers: tuple[Callable[[object], Any], ...] = ()
    role = "weight" if rest == [Weight] else "input"
    if rest in ([Tensor], [Weight]):
        kind, accepts = "tensor", "tensor"
    elif rest == [InOut]:
        kind, accepts, access = "tensor", "tensor written in place", "RW"
    elif rest == [tuple[Tensor, ...]]:
        kind, accepts = "tensors", "tuple of tensors"
    elif rest == [tuple[InOut, ...]]:
        kind, accepts, access = "tensors", "tuple of tensors written in place", "RW"
    elif number is not None and rest == [number]:
        kind, accepts = "scalar", "number"
    elif number is not None and len(rest) == 2 and Tensor in rest:
        kind, accepts = "scalar or tensor", "number or tensor"
    else:
        kind = "attribute"
        unknown = [m for m in members if m not in _READERS]
        if unknown:
            raise TypeError(f"parameter {parameter.name!r}: no slot kind for {unknown[0]!r}")
        readers = tuple(_READERS[m][1] for m in members)
        if not optional and members[0] in (DType, DeviceName) and parameter.default is not REQUIRED:
            readers = (_default_of(parameter.default, parameter.name), *readers)
        accepts = " or ".join(_READERS[m][0] for m in members)
    if optional and kind != "attribute":
        accepts += " or None"
    default = parameter.default
    slot = Slot(parameter.name, kind, access, optional, default, accepts, readers, takes, role)
    if slot.has_default:
        _check_default(slot)
    return slot


def _check_default(slot: Slot) -> None:
    """Raise TypeError for a default that the argument cannot have."""

    def lift(value: Any) -> Any:
        raise ReadError

    try:
        slot.read(slot.default, lift)
    except (ReadError, MetaError):
        raise TypeError(
            f"parameter {slot.name!r}: the default {slot.default!r} is none of {slot.accepts}"
        ) from None
