"""What evaluating a binding reads and may write: for passes that move or repeat bindings."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from meta.dialect.core import IN_PLACE
from meta.dialect.core.ir_calls import base_op, flat_atoms, written_atoms, written_parameters
from meta.ir import Binding, Call, Constant, Effect, Expr, Function, If, free_vars, operands
from meta.ir.visit import nested_bindings, uses
from meta.passes.liveness import Liveness, Memory, fused_function

ANYTHING = "anything"
"""The place that every binding reads, and that a call of a function and a failure write."""
_RANDOM, _SHARED, _CELLS = "random", "shared", "cells"


class Effects:
    """The places that each binding of one function reads and writes, as `meta.ir.to_graph` takes
    them.

    A place is the memory of a value, through views and tuples; the state of the random numbers,
    which each random call writes; what references hold; or ANYTHING. All memory that a function is
    given by its caller, or gives to one that it calls, or gets back, is one place, since it may be
    the same; so is what it puts into data values and references, or takes out of them. The
    arguments of main are taken to be apart.
    """

    def __init__(self, function: Function, live: Liveness) -> None:
        self._live = live
        self._is_main = function is live.module.main
        self._known_shared: set[Memory] = set()
        self._calls = False
        for binding in live.bindings:
            given: tuple[Expr, ...] = ()
            if self._is_call(binding):
                given = (*operands(binding.value), binding.var)
                self._calls = True
            elif isinstance(binding.value, Function):
                given = tuple(free_vars(binding.value))
                self._calls = True
            elif binding.value.opaque:
                given = (*operands(binding.value), binding.var)
            self._known_shared.update(m for atom in given for m in live.memory(atom))

    def places(self, binding: Binding) -> tuple[set[Hashable], set[Hashable]]:
        """Return what a binding reads and what it may write, its blocks included."""
        reads = {ANYTHING, *(p for atom in uses(binding.value) for p in self.of(atom))}
        if any(
            one.value.effect is Effect.READ for one in (binding, *nested_bindings(binding.value))
        ):
            reads.add(_CELLS)
        return reads, self.writes(binding)

    def of(self, atom: Expr) -> set[Hashable]:
        """Return the places that reading an atom reads."""
        return {_SHARED if self._is_shared(m) else m for m in self._live.memory(atom)}

    def writes(self, binding: Binding) -> set[Hashable]:
        """Return what evaluating a binding may write."""
        found: set[Hashable] = set()
        # That a closure is made writes nothing; that it is called, anything.
        inside = nested_bindings(binding.value) if isinstance(binding.value, If) else ()
        for one in (binding, *inside):
            if self._is_call(one) or one.value.effect is Effect.FAIL:
                found.add(ANYTHING)
            if one.value.effect is Effect.WRITE:
                found.add(_CELLS)
            if not isinstance(one.value, Call):
                continue
            op = base_op(one.value.callee)
            if op is not None and op.random:
                found.add(_RANDOM)
            found.update(p for atom in self._written(one.value) for p in self.of(atom))
        return found

    def _written(self, call: Call) -> Iterator[Expr]:
        op = base_op(call.callee)
        if op is not None:
            yield from written_atoms(op, call)
        elif (kernel := fused_function(call, self._live.module)) is not None:
            over = (kernel.attrs[IN_PLACE],) if IN_PLACE in kernel.attrs else ()
            for i in (*written_parameters(kernel), *over):
                yield from flat_atoms(call.args[i])

    def _is_call(self, binding: Binding) -> bool:
        """Whether a binding is a call of a function that is no kernel, which may do anything."""
        call = binding.value
        is_function = isinstance(call, Call) and base_op(call.callee) is None
        return is_function and fused_function(call, self._live.module) is None

    def _is_shared(self, memory: Memory) -> bool:
        if memory in self._known_shared:
            return True
        return not isinstance(memory, int) and (
            not self._is_main or (self._calls and isinstance(memory, Constant))
        )
