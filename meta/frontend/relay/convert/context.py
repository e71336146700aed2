"""`Context`: what all parts of a conversion share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meta.base.source import Span, user_span
from meta.frontend.relay import ast
from meta.frontend.relay.convert.program import Program
from meta.frontend.relay.convert.types import DataTypes
from meta.frontend.relay.errors import RelayError
from meta.ir import Constant
from meta.op.core.handler import use
from meta.op.core.tracing import Symbol, Trace
from meta.runtime.ndarray import ndarray


class Context:
    """A conversion under way.

    Attributes
    ----------
    program: what is converted. trace: where bindings go now. root: where it began.
    training: whether the model is in train mode. types: the program's data types.
    place: where in the source we are.
    """

    def __init__(self, program: Program, trace: Trace, training: bool) -> None:
        self.program, self.trace, self.training = program, trace, training
        self.root = trace
        self.types = DataTypes(program.module.types, trace)
        self.place: ast.Place | None = None
        self._constants: dict[ast.Constant, ndarray] = {}

    @contextmanager
    def within(self, trace: Trace) -> Iterator[None]:
        """Let bindings go to ``trace``, with the source's lines."""
        outer, site = self.trace, trace.site
        self.trace = trace
        trace.site = self.span
        try:
            with use(trace):
                yield
        finally:
            self.trace, trace.site = outer, site

    def span(self) -> Span | None:
        """Return the line of the source, or the user's where the source has no lines."""
        if self.place is None or self.place.line is None:
            return user_span()
        return Span(self.place.source, self.place.line)

    def error(self, what: str, **details: Any) -> RelayError:
        """Return an error at the current place."""
        place = None if self.place is None else str(self.place)
        return RelayError(what, place=place, span=self.span(), **details)

    def constant(self, node: ast.Constant) -> ndarray:
        """Return a constant of the program as an array on the trace's device."""
        found = self._constants.get(node)
        if found is None:
            found = self.program.constant(node)
            if found.device != self.root.device:
                found = found.to(device=self.root.device)
            self._constants[node] = found
            # The program owns its constants: there is no need of a copy.
            held = Constant(found.torch())
            outermost = self.root
            while (outer := getattr(outermost, "outer", None)) is not None:
                outermost = outer
            outermost.bind(found, Symbol(outermost, held, held.type))
        return found
