"""Schemas: a Python signature read as the list of an operator's slots (`slot`)."""

from __future__ import annotations

import inspect
import typing
from collections import namedtuple
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any

from meta.base.device import default_device
from meta.base.errors import ArgumentError, MetaError, RegistrationError
from meta.base.registry import OPERATORS
from meta.base.signature_check import suggest_argument
from meta.base.source import definition_span
from meta.ir.types import TensorType
from meta.op.core.slot import NUMBERS, REQUIRED, WHERE, ReadError, Slot, slot_of

_ABSENT = (REQUIRED, None)


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
                slots.append(slot_of(parameter, annotations[parameter.name]))
            except TypeError as error:
                raise RegistrationError(
                    f"operator {name!r}: {error}",
                    expected="annotations listed in meta.op.core.slot, and defaults of theirs",
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
        except ReadError:
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
