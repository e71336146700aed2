"""Fused patterns: one kernel of a dialect for several calls of operators.

`Dialect.pattern` registers one; the pass `fuse_dialect` finds where it applies and makes functions
of these places, whose attributes say which kernel runs them and how it gets its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from meta.base.device import Device
from meta.base.errors import IRError, RegistrationError
from meta.base.source import Span
from meta.dialect.core.openv import Kernel, OpEnv, Unsupported
from meta.dialect.core.registration_checks import require_result
from meta.ir.expr import Function
from meta.ir.types import TupleType
from meta.op.core.registration import parameters, reason_of, require_function

if TYPE_CHECKING:
    from meta.dialect.core.backend import Backend

FUSED = "fused"
"""The attribute of a fused function: the name of the dialect that runs it as one kernel."""
OUT = "out"
"""The parameter under which a kernel is given the tensor that it fills."""
KERNEL, ARGUMENTS, LITERALS = "kernel", "arguments", "literals"
"""Attributes of a function that a pattern's kernel runs: the pattern's name; by name which of the
function's parameters the kernel takes; by name the literals that it takes."""
ALLOCATES = "allocates"
"""The attribute of a fused function whose kernel returns its results instead of filling them."""
CONFIG = "config"
"""The attribute of a fused function: how its kernel is launched, a configuration as text."""
ADJACENT = "adjacent"
"""The attribute of a fused function whose results are best laid side by side in memory."""


RESULT, DEVICE = "result", "device"
"""Parameters under which a maker is given the type of the result (a tuple of several), and the
device."""
FusedMaker = Callable[..., OpEnv]
Types = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class FusedPattern:
    """A kernel of a dialect that runs what a pattern describes.

    Attributes
    ----------
    name: of the kernel's function. dialect: whose it is. describes: the pattern, a function in
    operator call syntax. plevels: its level by kind of device. site: where the kernel is defined.
    kernel: a function on torch tensors. when: says of the types of what the pattern captures why
    the kernel does not take it, or None. maker: in the place of both, what prepares a kernel; see
    `Dialect.pattern_op`.
    """

    name: str
    dialect: Backend
    describes: Callable[..., Any]
    plevels: dict[str, int]
    site: Span
    kernel: Kernel | None = None
    when: Callable[..., str | None] | None = None
    maker: FusedMaker | None = None

    def __post_init__(self) -> None:
        what = f"the pattern {self.name!r} of {self.dialect.name!r}"
        require_function(self.describes, what, self.site)
        require_function(self.maker or self.kernel, f"the kernel of {what}", self.site)
        if self.when is not None:
            require_function(self.when, f"when= of {what}", self.site)
        if self.maker is None:
            assert self.kernel is not None
            require_result(self.kernel, f"the kernel of {what}", OUT)
            self._check(self.kernel, (OUT,))
            self._check(self.when, ())
        else:
            self._check(self.maker, (RESULT, DEVICE))

    @property
    def captures(self) -> tuple[str, ...]:
        """The names of what the pattern captures, in order."""
        return tuple(inspect.signature(self.describes).parameters)

    def prepare(self, captures: Types, result: Any, device: Device) -> OpEnv:
        """Return the kernel for captures of these types and a result (a tuple of several) of that
        type: a function of the captured tensors, and of the results if it fills them.

        Raises Unsupported if it does not take them.
        """
        if self.maker is not None:
            known = {**captures, RESULT: result, DEVICE: device}
            made: Any = self.maker(**{n: known[n] for n in self._asked(self.maker)})
            if not isinstance(made, OpEnv):
                raise RegistrationError(
                    f"the maker of the pattern {self.name!r} returns no kernel",
                    expected="OpEnv(function, allocates=...), or that it raises Unsupported",
                    found=f"{made!r:.200}",
                    span=self.site,
                )
            return made
        assert self.kernel is not None
        asked = {} if self.when is None else {n: captures[n] for n in self._asked(self.when)}
        reason = None if self.when is None else reason_of(self.when, self.when(**asked), "when=")
        if reason is not None:
            raise Unsupported(reason)
        return OpEnv(self.kernel, OUT not in inspect.signature(self.kernel).parameters, True)

    def env(self, function: Function, device: Device) -> OpEnv:
        """Return the kernel of a function that was made of a match, called with its arguments.

        IRError if the function's attributes, which may come from a file, do not give the kernel
        what it takes.
        """
        places: dict[str, Any] = {}
        for name, place in _pairs(function.attrs.get(ARGUMENTS)):
            if type(place) is int and 0 <= place < len(function.params):
                places[name] = place
        constants = dict(_pairs(function.attrs.get(LITERALS, ())))
        if self.maker is None:
            return self._bound(function, places, constants)
        known = {n: function.params[p].type for n, p in places.items()} | constants
        type_ = function.result_type
        result = type_.fields if isinstance(type_, TupleType) else type_
        self._require(self.maker, {**known, RESULT: result, DEVICE: device}, function)
        made = self.prepare(known, result, device)
        order = [places[n] for n in self.captures if n in places]
        if order != list(range(len(function.params))):
            reordered = partial(_reordered, order=tuple(order), count=len(function.params))
            made.wrap(reordered, kept=False)
        return made

    def _bound(
        self, function: Function, places: dict[str, Any], constants: dict[str, Any]
    ) -> OpEnv:
        """Return the plain function with its literals bound."""
        assert self.kernel is not None
        wanted = inspect.signature(self.kernel).parameters
        count, result = len(function.params), function.result_type
        if OUT in wanted:
            several = len(result.fields) if isinstance(result, TupleType) else 0
            places[OUT] = slice(count, count + several) if several else count
        self._require(self.kernel, {**places, **constants}, function)
        run = launcher(self.kernel, places, constants, count + (OUT in wanted))
        return OpEnv(run, allocates=OUT not in wanted, strided=True)

    def _check(self, function: Callable[..., Any] | None, more: tuple[str, ...]) -> None:
        """Raise RegistrationError for a parameter that is neither a capture nor one of ``more``."""
        names, asked = self.captures, () if function is None else self._asked(function)
        unknown = [n for n in asked if n not in (*names, *more)]
        reserved = [n for n in more if n in names]
        if unknown or reserved:
            raise RegistrationError(
                f"the kernel {self.name!r} of a pattern asks for {unknown or reserved}",
                expected=f"some of {names}, which the pattern captures, and {more}",
                hint="a capture cannot bear a name that is given to kernels anyway",
                span=self.site,
            )

    def _asked(self, function: Callable[..., Any]) -> list[str]:
        """Return what a function is given: captures, and what it has no default for."""
        known = (*self.captures, OUT, RESULT, DEVICE)
        parameters = inspect.signature(function).parameters.items()
        return [n for n, p in parameters if p.default is p.empty or n in known]

    def _require(self, function: Callable[..., Any], given: Types, made: Function) -> None:
        missing = [name for name in self._asked(function) if name not in given]
        if missing:
            raise IRError(
                f"a function does not say what the kernel {self.name!r} takes as {missing}",
                found={n: made.attrs.get(n) for n in (ARGUMENTS, LITERALS)},
                span=self.site,
            )


def _reordered(run: Kernel, order: tuple[int, ...], count: int) -> Kernel:
    """Return a kernel of captures as one of a function's ``count`` parameters."""

    def launch(*values: Any) -> Any:
        return run(*[values[place] for place in order], *values[count:])

    return launch


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """Return the pairs of a name and a value that a literal consists of; nothing of others."""
    pairs = value if isinstance(value, tuple) else ()
    return [p for p in pairs if isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str)]


def launcher(
    function: Callable[..., Any], places: dict[str, Any], constants: dict[str, Any], count: int
) -> Callable[..., Any]:
    """Return ``function`` as a callable of ``count`` run-time values.

    ``places``: by parameter, which of them it takes, an index or a slice. ``constants``: the other
    parameters. What it has no parameter for is left out. Where all values are taken in order, there
    is nothing in between.
    """
    wanted = parameters(function)
    constants = {n: v for n, v in constants.items() if n in wanted}
    order = [n for n in wanted if n in places]
    in_order = [places[n] for n in order] == list(range(count))
    if in_order and tuple(order) == wanted[: len(order)]:
        return partial(function, **constants) if constants else function
    picks = tuple((n, places[n]) for n in order)

    def launch(*values: Any) -> Any:
        return function(**{n: values[p] for n, p in picks}, **constants)

    return launch
