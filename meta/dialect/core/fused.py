"""Fused patterns: one kernel of a dialect for several calls of operators.

`Dialect.pattern` registers one; the pass `fuse_dialect` finds where it applies and makes functions
of these places, whose attributes say which kernel runs them and how it gets its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from meta.base.errors import IRError, RegistrationError
from meta.base.source import Span
from meta.dialect.core.openv import Kernel, OpEnv
from meta.ir.expr import Function

if TYPE_CHECKING:
    from meta.dialect.core.dialect import Dialect

FUSED = "fused"
"""The attribute of a fused function: the name of the dialect that runs it as one kernel."""
OUT = "out"
"""The parameter under which a kernel is given the tensor that it fills."""
KERNEL, ARGUMENTS, LITERALS = "kernel", "arguments", "literals"
"""Attributes of a function that a pattern's kernel runs: the pattern's name; by name which of the
function's parameters the kernel takes; by name the literals that it takes."""
ALLOCATES = "allocates"
"""The attribute of a fused function whose kernel returns its result instead of filling it."""


@dataclass(frozen=True, eq=False)
class FusedPattern:
    """A kernel of a dialect that runs what a pattern describes.

    Attributes
    ----------
    name: of the kernel's function. dialect: whose it is. describes: the pattern, a function in
    operator call syntax. plevels: its level by kind of device. kernel: a function on torch tensors.
    when: says of the types of what the pattern captures why the kernel does not take it, or None.
    site: where the kernel is defined.
    """

    name: str
    dialect: Dialect
    describes: Callable[..., Any]
    plevels: dict[str, int]
    kernel: Kernel
    when: Callable[..., str | None] | None
    site: Span

    def __post_init__(self) -> None:
        names = tuple(inspect.signature(self.describes).parameters)
        asked = [*inspect.signature(self.kernel).parameters]
        asked += [] if self.when is None else [*inspect.signature(self.when).parameters]
        unknown = [n for n in asked if n not in (*names, OUT)]
        if OUT in names or unknown:
            raise RegistrationError(
                f"the kernel {self.name!r} of a pattern asks for {unknown or [OUT]}",
                expected=f"some of {names}, which the pattern captures, and {OUT!r} for the result",
                span=self.site,
            )

    @property
    def allocates(self) -> bool:
        """Whether the kernel returns its result, instead of filling a tensor that it is given."""
        return OUT not in inspect.signature(self.kernel).parameters

    def env(self, function: Function) -> OpEnv:
        """Return the kernel of a function that was made of a match, called with its arguments.

        IRError if the function's attributes, which may come from a file, do not give the kernel
        what it takes.
        """
        places: dict[str, Any] = {}
        for name, place in _pairs(function.attrs.get(ARGUMENTS)):
            if type(place) is int and 0 <= place < len(function.params):
                places[name] = place
        constants = dict(_pairs(function.attrs.get(LITERALS, ())))
        if not self.allocates:
            places[OUT] = len(function.params)
        wanted = inspect.signature(self.kernel).parameters
        missing = [name for name in wanted if name not in places and name not in constants]
        if missing:
            raise IRError(
                f"a function does not say what the kernel {self.name!r} takes as {missing}",
                found={n: function.attrs.get(n) for n in (ARGUMENTS, LITERALS)},
                span=self.site,
            )
        run = launcher(
            self.kernel,
            {n: p for n, p in places.items() if n in wanted},
            {n: v for n, v in constants.items() if n in wanted},
            len(function.params) + (not self.allocates),
        )
        return OpEnv(run, allocates=self.allocates, strided=True)


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """Return the pairs of a name and a value that a literal consists of; nothing of others."""
    pairs = value if isinstance(value, tuple) else ()
    return [p for p in pairs if isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str)]


def launcher(
    function: Callable[..., Any], places: dict[str, Any], constants: dict[str, Any], count: int
) -> Callable[..., Any]:
    """Return ``function`` as a callable of ``count`` run-time values.

    ``places``: by parameter, which of them it takes, an index or a slice. ``constants``: the other
    parameters. Where all values are taken in order, there is nothing in between.
    """
    wanted = tuple(inspect.signature(function).parameters)
    order = [n for n in wanted if n in places]
    in_order = [places[n] for n in order] == list(range(count))
    if in_order and tuple(order) == wanted[: len(order)]:
        return partial(function, **constants) if constants else function
    picks = tuple((n, places[n]) for n in order)

    def launch(*values: Any) -> Any:
        return function(**{n: values[p] for n, p in picks}, **constants)

    return launch
