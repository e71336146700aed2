"""Mutation of buffers: arrays that a model sets while it is traced (``self.count += 1``): the
program updates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from meta import op
from meta.base.errors import TraceError
from meta.base.source import Span
from meta.ir import Block, Call, Expr, TupleType
from meta.ir.builder import BlockBuilder
from meta.ir.visit import substitute
from meta.model.model import Model
from meta.op.core.tracing import Trace, Value
from meta.runtime.ndarray import ndarray


class BufferMutation:
    """The array attributes of a model and all inside, as they are before a trace."""

    def __init__(self, owner: Any) -> None:
        models = owner.models() if isinstance(owner, Model) else []
        self.held = [
            (model, name, value)
            for model in models
            for name, value in model.settable().items()
            if isinstance(value, ndarray) and name in model.members()
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set the attributes that hold a traced value back at the end."""
        try:
            yield
        finally:
            for model, name, array in self.held:
                if isinstance(model.settable().get(name), Value):
                    model.settable()[name] = array

    def collect(self, trace: Trace, site: Span | None) -> dict[Expr, Value]:
        """Set the attributes back that hold another array, or a value of this trace; return these
        by what stands for the array. TraceError for a value of another type, a parameter that is
        trained, and an array under two names that are set to two values.
        """
        found: dict[Expr, Value] = {}
        for model, name, array in self.held:
            new = model.settable().get(name)
            if new is array or not isinstance(new, Value | ndarray):
                continue
            if isinstance(new, Value) and new.trace is not trace:
                continue
            old, value = trace.lift(array), trace.lift(new)
            what = f"the traced code sets the attribute {name!r} of {type(model).__name__}"
            if array.requires_grad:
                raise TraceError(
                    f"{what}, which is trained",
                    hint="an optimizer updates parameters; set requires_grad = False for others",
                    span=site,
                )
            if value.type != old.type:
                raise TraceError(
                    f"{what} to a value of another type",
                    expected=old.type,
                    found=value.type,
                    hint="cast or reshape it; the array is updated in place",
                    span=site,
                )
            if found.setdefault(old.atom, value) is not value:
                raise TraceError(f"{what}, and the same array under another name", span=site)
            model.settable()[name] = array
        return found


def with_mutations(body: Block, assigned: Mapping[Expr, Value], site: Span | None) -> Block:
    """Return a body that writes arrays at its end. What it reads of them are copies, so that
    results, other values and gradients see the arrays as they were before.
    """
    if not assigned:
        return body
    builder = BlockBuilder()
    old = {
        array: builder.emit(Call(op.copy, (array,)), type=value.type, span=site)
        for array, value in assigned.items()
    }
    body = substitute(body, old)
    for binding in body.bindings:
        builder.append(binding)
    for array, value in assigned.items():
        new = old.get(value.atom, value.atom)
        builder.emit(Call(op.assign, (array, new)), type=TupleType(()), span=site)
    return builder.finish(body.result)
