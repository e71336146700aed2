"""`Converters`: by operator of another system, the function that expresses it in base operators.

A source makes one registry and fills it in the family files of its folder::

    relay = Converters("relay", attributes=...)
    relay.same("nn.relu", op.relu)                  # arguments and attributes agree
    relay.same("nn.leaky_relu", op.leaky_relu, alpha="negative_slope")
    relay.same("gather", op.take_along_axis, otherwise={"axis": 0})

    @relay("nn.dense", op.dense)                    # the base operators it becomes
    def dense(data, weight, *, units, out_dtype, call):
        ...

Positional parameters are the tensors, in the source's order: arrays, symbols, or Python tuples of
them; ``*name`` takes any number, and a default of None says that one may be absent. Keyword-only
parameters are attributes by the source's names, as plain Python values with defaults filled in;
``**name`` takes all others, to be handed on to another converter or operator as they are. A
parameter ``call`` is given the `CallSite`. An attribute that the function does not take must have
its default value in every call; `ignore` names those that mean nothing here. A converter calls
operators of `meta.op`, works eagerly and traced, and raises `Unconvertible` for what it cannot do.
Like a gradient rule it is written without annotations.

One error (`conversion_error`) lists all that a program asks for and has no converter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar

from meta.base.device import CPU, Device
from meta.base.errors import FormatError, MetaError, RegistrationError
from meta.base.registry import FUNCTIONS, Registry, nearest
from meta.base.source import Span, caller_span, definition_span, outermost_user_span
from meta.op.core import Op
from meta.op.core.op import by_schema
from meta.op.core.registration import require_function, require_op

# A MemoryError is a size beyond all reason.
BAD_ATTRIBUTES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What Python raises where an attribute of a file has not the form that the operator's have."""


class Unconvertible(Exception):
    """A call that a converter cannot express, and why; one error reports all of a program."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True)
class CallSite:
    """Where a converted call stands.

    Attributes
    ----------
    name: the source's name of the operator.
    version: major and minor version of the program that wrote the file, (0, 7), or of the operator
        set that the call is of; None if unknown.
    given: names of the attributes that the file states; the others have their defaults.
    has_attributes: False where the call has no attributes at all, as for operators that had none in
        that version.
    training: whether a model in train mode is being traced.
    device: where arrays that the converter makes belong.
    result_type: the type that the file declares for the result, as the importer's own type node;
        None if it declares none.
    results: how many results the call names; a converter may return fewer only if these are all.
    """

    name: str
    version: tuple[int, int] | None = None
    given: frozenset[str] = frozenset()
    has_attributes: bool = True
    training: bool = False
    device: Device = field(default=CPU)
    result_type: Any = None
    results: int = 1

    @property
    def opset(self) -> int:
        """The version of ONNX's operator set that the call is of."""
        assert self.version is not None
        return self.version[0]


Function = Callable[..., Any]


def _is_composed_function(given: Any) -> bool:
    """Whether this is a function that is composed of operators."""
    return any(given is one for one in FUNCTIONS.values())


@dataclass(frozen=True)
class Converter:
    """How one operator of another system is expressed.

    Attributes
    ----------
    name: the source's name. function: as described above; None if the operator is not converted.
    reason: why it is not converted. becomes: the base operators in the result.
    attributes: those that the function takes, with their names as its keywords. ignored: those
    without a meaning here. otherwise: by keyword, what stands for an attribute that the source
    does not have, or leaves out.
    """

    name: str
    function: Function | None
    reason: str | None = None
    becomes: tuple[Op, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    otherwise: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The parameters of the function."""
        function = self.function
        assert function is not None
        return (
            function.schema.signature if isinstance(function, Op) else inspect.signature(function)
        )


class Converters(Registry[Converter]):
    """The converters of one source.

    Parameters
    ----------
    source: the source's name, "relay"; operators list their converters under it.
    attributes: the attributes of an operator with their defaults, or None for an operator that is
        not known; a converter that asks for another one is refused when it is registered.
    read: makes the value that a function is given of what a file states: (operator, attribute,
        value).
    meaningless: attributes that are ignored wherever an operator has them.
    """

    def __init__(
        self,
        source: str,
        attributes: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
        read: Callable[[str, str, Any], Any] = lambda _operator, _attribute, value: value,
        meaningless: Sequence[str] = (),
    ) -> None:
        super().__init__(f"{source} converter")
        self.source, self._attributes, self._read = source, attributes, read
        self._meaningless = meaningless

    def __call__(
        self, *names: str | Op, ignore: tuple[str, ...] = (), rest: Sequence[str] = ()
    ) -> Callable[[Function], Function]:
        """Register a function for one or more of the source's operators: a decorator.

        Parameters
        ----------
        names: the source's names, and the base operators that the function calls.
        ignore: attributes that have no meaning here, so that any value will do.
        rest: what ``**name`` takes, where the source does not state the attributes.
        """
        becomes = tuple(n for n in names if isinstance(n, Op))
        if not any(isinstance(n, str) for n in names):
            raise RegistrationError(
                f"a {self.source} converter is of no operator",
                expected=f"@{self.source}(name, ...), a name of an operator there, as a string",
                found=", ".join(f"{n!r:.100}" for n in names) or "nothing",
            )
        for other in (n for n in names if not isinstance(n, str) and not _is_composed_function(n)):
            require_op(other, f"what the {self.source} converter of {names[0]!r} calls")

        def register(function: Function) -> Function:
            site = definition_span(function)
            require_function(function, f"the {self.source} converter of {names[0]!r}", site)
            if isinstance(function, Op):
                raise RegistrationError(
                    f"the {self.source} converter of {names[0]!r} is an operator",
                    expected="a function that calls it",
                    hint=f"{self.source}.same(name, op) registers one of the same arguments",
                )
            for name in (n for n in names if isinstance(n, str)):
                taken = self._taken(name, function, ignore, rest, site)
                ignored = frozenset(self._ignored(name, ignore))
                self._add(Converter(name, function, None, becomes, taken, ignored), site)
            return function

        return register

    def each(
        self, *bases: Op, form: str = "{}", also: Sequence[Op] = (), rest: Sequence[str] = ()
    ) -> Callable[[Function], Function]:
        """Register a function for several base operators, which it takes before the tensors, under
        the source's names, ``form`` of theirs: a decorator. also: what it calls besides.
        """

        for base in bases:
            require_op(base, f"a {self.source} converter for each operator")

        def register(function: Function) -> Function:
            for base in bases:
                name = form.format(base.name)
                self(name, base, *also, rest=rest)(partial(function, base))
            return function

        return register

    def _ignored(self, name: str, ignore: Sequence[str]) -> tuple[str, ...]:
        """Return the attributes of an operator that are ignored."""
        known = self._attributes(name) or ()
        return (*ignore, *(n for n in self._meaningless if n in known and n not in ignore))

    def same(
        self,
        name: str,
        op: Op,
        *attributes: str,
        ignore: tuple[str, ...] = (),
        otherwise: Mapping[str, Any] | None = None,
        **renamed: str,
    ) -> None:
        """Register an operator whose tensors and attributes are those of a base operator, the
        tensors in the same order.

        attributes: those of the same name; all, where the source states the attributes of its
        operators. ignore: those without a meaning here. otherwise: by name of an attribute of the
        base operator, its value where the source's is None or "", or has none; else it is the base
        operator's default. renamed: by the source's name of an attribute, the base operator's.

        Raises RegistrationError, with the caller's line, for attributes that the operator, or the
        source's, does not have.
        """
        site = caller_span()
        require_op(op, f"the {self.source} converter of {name!r}", site)
        known = self._attributes(name)
        ignored = self._ignored(name, ignore)
        stated = [n for n in (*(known or ()), *attributes) if n not in ignored]
        wanted = {**{n: n for n in stated}, **renamed}
        otherwise = dict(otherwise or {})
        own = [s.name for s in op.slots if s.kind != "tensor" and s.kind != "tensors"]
        for there, here in (*wanted.items(), *((n, n) for n in otherwise)):
            if here not in own:
                self._refuse_attribute(name, here, own, f"of {op.name}", site)
            if known is not None and there not in known and there not in otherwise:
                self._refuse_attribute(name, there, known, "of it", site)
        for there in (ignore,) if isinstance(ignore, str) else ignore:
            if isinstance(ignore, str) or (known is not None and there not in known):
                self._refuse_attribute(name, there, known or (), "of it, in a tuple", site)
        self._add(Converter(name, op, None, (op,), wanted, frozenset(ignored), otherwise), site)

    def _refuse_attribute(
        self, name: str, attribute: str, known: Iterable[str], whose: str, site: Span
    ) -> NoReturn:
        raise RegistrationError(
            f"the {self.source} converter of {name!r} takes {attribute!r}, which is no "
            f"attribute {whose}",
            expected=", ".join(sorted(known)) or "no attributes",
            hint=nearest(attribute, known),
            span=site,
        )

    def refuse(self, *names: str, why: str) -> None:
        """State that operators are not converted, and why: for users and the documentation."""
        for name in names:
            self._add(Converter(name, None, why), caller_span())

    def _taken(
        self, name: str, function: Function, ignore: Sequence[str], rest: Sequence[str], site: Span
    ) -> dict[str, str]:
        """Return the attributes that a function takes."""
        parameters = inspect.signature(function).parameters.values()
        attributes = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        attributes -= {"call"}
        stated = self._attributes(name)
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            attributes |= set(stated or rest) - set(self._ignored(name, ignore))
        wrong = sorted((attributes | set(ignore)) - set(stated)) if stated is not None else []
        if wrong:
            self._refuse_attribute(name, wrong[0], stated or (), "of it", site)
        return {n: n for n in attributes}

    def _add(self, converter: Converter, site: Span) -> None:
        self.register(converter.name, converter, site)
        for op in converter.becomes:
            op.aspects.converters[f"{self.source} {converter.name}"] = site

    def apply(self, site: CallSite, args: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Convert one call, of arrays, symbols and tuples, by the function of ``site.name``.

        Raises Unconvertible if the operator has no converter, takes other arguments, or an
        attribute that the converter does not take differs from its default.
        """
        converter = self.require(site.name, attributes)
        function = converter.function
        assert function is not None
        signature = converter.signature
        defaults = self._attributes(site.name) or {}
        given = {}
        for n, keyword in converter.attributes.items():
            own = signature.parameters.get(keyword)
            if n in attributes or n in defaults or own is None or own.default is own.empty:
                given[keyword] = self._read(site.name, n, attributes.get(n, defaults.get(n)))
        if "call" in signature.parameters:
            given["call"] = site
        try:
            signature.bind(*args, **given)
        except TypeError as error:
            raise Unconvertible(f"it does not take these arguments: {error}") from None
        if isinstance(function, Op):
            stated = {n: v for n, v in given.items() if v is not None}
            for n, value in converter.otherwise.items():
                if stated.get(n, "") == "":
                    stated[n] = value
            return by_schema(function)(*args, **stated)
        if self.site(site.name).is_own:
            return function(*args, **given)
        return self._by_stranger(site.name, function, args, given)

    def _by_stranger(
        self, name: str, function: Function, args: Sequence[Any], given: Mapping[str, Any]
    ) -> Any:
        """Return what a converter of somebody else returns; RegistrationError, with its line, for
        what it raises that is not of `meta`, and if it returns nothing.
        """
        what = f"the {self.source} converter of {name!r}"
        try:
            result = function(*args, **given)
        except (MetaError, Unconvertible, Warning):
            raise
        except Exception as error:
            place = outermost_user_span(error.__traceback__) or definition_span(function)
            raise RegistrationError(
                f"{what} raises {type(error).__name__}: {error}", span=place
            ) from error
        if result is None or isinstance(result, str):
            raise RegistrationError(
                f"{what} returns {result!r:.100}",
                expected="a value that operators return, or a tuple of them",
                span=definition_span(function),
            )
        return result

    def require(self, name: str, attributes: Mapping[str, Any]) -> Converter:
        """Return an operator's converter, if it takes such attributes; Unconvertible as `apply`."""
        converter = self.get(name)
        if converter is None:
            near = get_close_matches(name, [n for n in self if self[n].function is not None], 2)
            hint = f"the nearest that are converted: {', '.join(near)}" if near else None
            raise Unconvertible("there is no converter", hint=hint)
        if converter.function is None:
            raise Unconvertible(converter.reason or "it is not converted")
        defaults = self._attributes(name)
        for attribute, value in attributes.items():
            if attribute in converter.attributes or attribute in converter.ignored:
                continue
            if defaults is not None and attribute not in defaults:
                known = ", ".join(defaults) or "none"
                raise Unconvertible(f"it has no attribute {attribute!r}", hint=f"known: {known}")
            if defaults is None or value != defaults[attribute]:
                raise Unconvertible(f"the attribute {attribute}={value!r} is not supported")
        return converter


@dataclass(frozen=True)
class Failure:
    """A call that is not converted; ``place`` is the source's name of its node or variable."""

    operator: str
    why: str
    hint: str | None = None
    place: str = ""


_Error = TypeVar("_Error", bound=FormatError)


def grouped(failures: Iterable[Failure]) -> list[tuple[Failure, ...]]:
    """Return the failures of one operator for one reason together, the most frequent first."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        found.setdefault((failure.operator, failure.why), []).append(failure)
    return [tuple(group) for group in sorted(found.values(), key=lambda group: -len(group))]


def conversion_error(
    failures: Iterable[Failure], kind: Callable[..., _Error], hint: str | None = None
) -> _Error:
    """Return the error, of a kind, that lists failures: each operator once, how often, and where
    first.
    """
    groups = grouped(failures)
    count = sum(map(len, groups))
    calls = "call of this program is" if count == 1 else "calls of this program are"
    error = kind(f"{count} {calls} not supported", hint=hint)
    error.failures = tuple(failure for group in groups for failure in group)
    for group in groups:
        first = group[0]
        times = "once" if len(group) == 1 else f"{len(group)} times"
        place = f", first at {first.place}" if first.place else ""
        near = f" ({first.hint})" if first.hint else ""
        error.note(f"  - {first.operator}, {times}{place}: {first.why}{near}")
    return error
