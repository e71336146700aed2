"""Schemas: a Python signature read as the list of an operator's slots.

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
from collections import namedtuple
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Union

import numpy as np

from meta.base import dtype as dtypes
from meta.base.device import Device, default_device
from meta.base.errors import ArgumentError, MetaError, RegistrationError, TypeInferError
from meta.base.registry import OPERATORS
from meta.base.signature_check import suggest_argument
from meta.base.source import definition_span
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
_ABSENT = (REQUIRED, None)


class _ReadError(Exception):
    """A reader does not take this value."""


def _read_none(value: object) -> None:
    if value is not None:
        raise _ReadError


def _reader(taken: Any, made: Callable[[Any], Any]) -> Callable[[object], Any]:
    """Return a reader of values of some types, each as ``made`` makes it."""

    def read(value: object) -> Any:
        if isinstance(value, taken):
            return made(value)
        raise _ReadError

    return read


def _read_int(value: object) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return _within_64_bits(int(value))
    raise _ReadError


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
    raise _ReadError


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
    raise _ReadError


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
        """Return the canonical form of an argument; raise _Refused or a MetaError if it does not
        fit.
        """
        if value is None and self.optional:
            return None
        if self.kind == "attribute":
            for reader in self.readers:
                try:
                    return reader(value)
                except _ReadError:
                    continue
            raise _ReadError
        if value is None:
            raise _ReadError
        if self.kind == "tensors":
            if not isinstance(value, tuple | list):
                raise _ReadError
            return tuple(lift(v) for v in value)
        if self.kind != "tensor":
            if isinstance(value, np.generic | NUMBERS):
                return _read_number(value)
            if self.kind == "scalar":
                raise _ReadError
        return lift(value)


def _default_of(default: str, name: str) -> Callable[[object], str]:
    """Return the reader of a dtype or device of which None is the default, as in NumPy."""

    def read(value: object) -> str:
        if value is not None:
            raise _ReadError
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


def _slot(parameter: inspect.Parameter, annotation: Any) -> Slot:
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
        raise _ReadError

    try:
        slot.read(slot.default, lift)
    except (_ReadError, MetaError):
        raise TypeError(
            f"parameter {slot.name!r}: the default {slot.default!r} is none of {slot.accepts}"
        ) from None


def hints_of(function: Callable[..., Any], what: str) -> dict[str, Any]:
    """Return the annotations of a function; RegistrationError for one that is not defined."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise RegistrationError(
            f"{what}: an annotation means nothing: {error}", span=definition_span(function)
        ) from None


class Schema:
    """The slots of one or more operators, read from a signature: from one of this package when they
    are first asked for, as a process may have use for few operators.

    options: a schema whose attributes and numbers that are not named follow, with their defaults,
    where the signature ends with ``*options``.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], options: Schema | None = None
    ) -> None:
        self.name = name
        self._given = function, options, name
        self._typed = function
        if not definition_span(function).is_own:
            self._read()

    @cached_property
    def returns(self) -> Any:
        """What the type function says that it returns."""
        return hints_of(self._typed, f"operator {self.name!r}").get("return")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "slots" in vars(self):
            raise AttributeError(f"a schema has no {name!r}")
        self._read()
        return getattr(self, name)

    def _read(self) -> None:
        function, options, name = self._given
        annotations = hints_of(function, f"operator {name!r}")
        own = list(inspect.signature(function).parameters.values())
        borrowed: list[Slot] = []
        if options is not None and own[-1].kind is inspect.Parameter.VAR_POSITIONAL:
            own.pop()
            kinds, taken = ("attribute", "scalar"), [p.name for p in own]
            borrowed = [s for s in options.slots if s.kind in kinds and s.name not in taken]
        theirs = [] if options is None else [options.signature.parameters[s.name] for s in borrowed]
        self.signature: inspect.Signature = inspect.Signature([*own, *theirs])
        slots = []
        for parameter in own:
            if (
                parameter.kind is not parameter.POSITIONAL_OR_KEYWORD
                or parameter.name not in annotations
                or parameter.name.startswith("_")
            ):
                raise RegistrationError(
                    f"parameter {parameter.name!r} of operator {name!r} cannot be a slot",
                    expected="an annotated, plain positional parameter without leading underscore",
                    span=definition_span(function),
                )
            try:
                slots.append(_slot(parameter, annotations[parameter.name]))
            except TypeError as error:
                raise RegistrationError(
                    f"operator {name!r}: {error}",
                    expected="annotations listed in meta.op.core.schema, and defaults of theirs",
                    span=definition_span(function),
                ) from None
        slots += borrowed
        self.slots: tuple[Slot, ...] = tuple(slots)
        self.names: tuple[str, ...] = tuple(s.name for s in slots)
        self.kinds: tuple[str, ...] = tuple(s.kind for s in slots)
        self.index: dict[str, int] = {n: i for i, n in enumerate(self.names)}
        self.defaults: tuple[Any, ...] = tuple(s.default for s in slots)
        self.required = sum(not s.has_default for s in slots)
        # How many arguments have to be written out for a kernel to see every run-time number.
        self.explicit = max(
            (i + 1 for i, s in enumerate(slots)
             if ("scalar" in s.kind and s.default not in _ABSENT) or s.name == WHERE),
            default=0,
        )  # fmt: skip
        placed = (i for i, s in enumerate(slots) if s.name == WHERE and s.has_default)
        self.where = next(placed, None)
        self.written: tuple[int, ...] = tuple(i for i, s in enumerate(slots) if s.access == "RW")
        self.tensor_slots: tuple[int, ...] = tuple(i for i, s in enumerate(slots) if s.is_tensor)
        self.typed_numbers: tuple[int, ...] = tuple(
            i for i, s in enumerate(slots) if s.takes is not None
        )
        for name_ in (n for s in slots for n in s.takes or ()):
            if name_ not in self.index:
                raise RegistrationError(
                    f"a number of operator {name!r} takes the dtype of {name_!r}",
                    expected=f"one of {', '.join(self.names)}",
                    span=definition_span(function),
                )
        # One tuple class per operator gives named access and costs nothing over a tuple.
        self.Args: Any = namedtuple(f"{name.strip('_')}_args", self.names)  # type: ignore[misc]

    def reserved(self, name: str) -> str:
        """Return the name by which gradient rules and kernels ask for what is no argument.

        That is ``y``, ``dy``, ``out`` or ``call``, with an underscore behind it for an operator
        that has an argument of this name.
        """
        return f"{name}_" if name in self.index else name

    def shared(self, name: str, function: Callable[..., Any]) -> Schema:
        """Return the same slots for another operator; RegistrationError if its type function does
        not take them, by these names or as one ``*arguments``.
        """
        parameters = inspect.signature(function).parameters
        taken = tuple(parameters)
        any_number = [p.kind for p in parameters.values()] == [inspect.Parameter.VAR_POSITIONAL]
        is_own = definition_span(function).is_own
        if not is_own and taken != self.names and not any_number:
            raise RegistrationError(
                f"operator {name!r} does not fit the schema of {self.name!r}",
                expected=f"the parameters {', '.join(self.names)}",
                found=", ".join(taken),
                span=definition_span(function),
            )
        copied = self.named(name)
        copied._typed = function
        vars(copied).pop("returns", None)
        return copied

    def named(self, name: str) -> Schema:
        """Return the same slots for another operator."""
        copied = copy(self)
        copied.name = name
        return copied

    def number_dtypes(self, args: tuple[Any, ...], result: Any) -> dict[int, str]:
        """Return, by slot, the dtypes that the Python numbers among canonical arguments take.

        ``result``: the operator's result type. Numbers that count as they are are left out.
        """
        found = {}
        for i in self.typed_numbers:
            if isinstance(args[i], NUMBERS):
                among = (args[self.index[n]] for n in self.slots[i].takes or ())
                like = next((a for a in among if isinstance(a, TensorType)), result)
                if not isinstance(like, TensorType):
                    flat = (t for a in args for t in (a if isinstance(a, tuple) else (a,)))
                    like = next((t for t in flat if isinstance(t, TensorType)), None)
                if like is not None:
                    found[i] = like.dtype
        return found

    def arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments in slot order, with defaults; ArgumentError for a wrong one."""
        defaults = self.defaults
        if self.where is not None and self.where >= len(args):
            place = str(default_device())
            defaults = (*defaults[: self.where], place, *defaults[self.where + 1 :])
        if not kwargs and self.required <= len(args) <= len(self.slots):
            return args + defaults[len(args) :]
        if len(args) > len(self.slots):
            raise self._refusal(f"takes {len(self.slots)} arguments, {len(args)} were given")
        values = list(args) + list(defaults[len(args) :])
        for name, value in kwargs.items():
            i = self.index.get(name)
            if i is None:
                hint = suggest_argument(name, self.names)
                raise self._refusal(f"there is no argument {name!r}", hint=hint)
            if i < len(args):
                hint = "a shape is one argument, a tuple" if "shape" in self.index else None
                raise self._refusal(f"argument {name!r} is given twice", hint=hint)
            values[i] = value
        missing = [n for n, v in zip(self.names, values, strict=True) if v is REQUIRED]
        if missing:
            raise self._refusal(
                f"argument {missing[0]!r} is missing",
                found=f"missing {missing}",
                hint=f"give {', '.join(f'{n}=' for n in missing)}",
            )
        return tuple(values)

    def _refusal(
        self, what: str, *, found: str | None = None, hint: str | None = None
    ) -> ArgumentError:
        return ArgumentError(what, op=self.name, expected=str(self), found=found, hint=hint)

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], lift: Callable[[Any], Any]
    ) -> tuple[Any, ...]:
        """Return canonical arguments in slot order; ``lift`` makes values of tensors."""
        values = self.arrange(args, kwargs)
        return tuple(self.read(s, v, lift) for s, v in zip(self.slots, values, strict=True))

    def read(self, slot: Slot, value: Any, lift: Callable[[Any], Any]) -> Any:
        """Return the canonical form of one argument; ArgumentError if it does not fit its slot."""
        try:
            return slot.read(value, lift)
        except _ReadError:
            text = repr(value)
            found = text if len(text) < 80 and "\n" not in text else type(value).__name__
            by_element = f"{self.name}imum"  # of torch's x.max(y)
            compares = slot.name == "axis" and by_element in OPERATORS and hasattr(value, "shape")
            raise ArgumentError(
                f"argument {slot.name!r} does not fit",
                op=self.name,
                expected=slot.accepts,
                found=f"{found} ({type(value).__name__})",
                hint=f"meta.{by_element}(x, y) compares by element" if compares else None,
            ) from None
        except MetaError as error:
            if error.op is None:
                error.op = f"{self.name}, argument {slot.name!r}"
            raise

    def __str__(self) -> str:
        parts = []
        for s in self.slots:
            text = f"{s.name}: {s.accepts}"
            parts.append(f"{text} = {s.default!r}" if s.has_default else text)
        return f"{self.name}({', '.join(parts)})"
