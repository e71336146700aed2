"""Which of the forward values a gradient reads, where it has the choice.

The gradient of `tanh` can be had from its argument as well as from its result. What must be kept
for it from the forward computation to the backward one depends on what is kept anyway.

An operator says by ``@op(enough=...)`` which sets of its optional tensors are enough, and by
``forward=`` which operator's argument and result they are; no operator is named here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    If,
    Module,
    Var,
    bindings,
    free_vars,
    operands,
    type_of,
)
from meta.ir.visit import inner_blocks
from meta.op.core import Op
from meta.passes.buffers import Buffers, each_with_buffers
from meta.passes.lifetimes import type_bytes
from meta.passes.rewrite import with_value


def select_gradient_inputs(module: Module) -> Module:
    """Choose, among the arguments of which a gradient operator needs one, those that keep the least
    memory alive; drop the others.

    A value is free if it is in use at that place or later for another reason, is an argument of
    main or a constant. Otherwise its bytes count. Where nothing is gained the arguments stay. Runs
    before `dispatch`; `dead_code` then removes what nobody uses any more.

    >>> from meta.ir import parse
    >>> print(select_gradient_inputs(parse('''
    ... func @main(%x: float32[2], %dy: float32[]) -> (float32[], float32[2]) {
    ...   %y: float32[2] = relu(%x)
    ...   %s: float32[] = sum(%y)
    ...   %d: float32[2] = broadcast_to(%dy, (2,))
    ...   %dx: float32[2] = relu_dx(x=None, y=%y, dy=%d)
    ...   return (%s, %dx)
    ... }''')))
    func @main(%x: float32[2], %dy: float32[]) -> (float32[], float32[2]) {
      %y: float32[2] = relu(%x)
      %s: float32[] = sum(%y)
      %d: float32[2] = broadcast_to(%dy, shape=(2,))
      %dx: float32[2] = relu_dx(%x, y=None, dy=%d)
      return (%s, %dx)
    }
    """

    def change(function: Function, buffers: Buffers) -> Function:
        free = function.params if function is module.functions.get("main") else ()
        select = _Select(buffers, function, free)
        return replace(function, body=select.block(function.body))

    return each_with_buffers(module, change)


class _Select:
    """One function, from its last binding to its first: what is used later is known by then."""

    def __init__(self, buffers: Buffers, function: Function, free: tuple[Var, ...]) -> None:
        self._buffers = buffers
        self._values = {b.var: b.value for b in bindings(function)}
        self._free: set[Expr] = set(free)
        self._kept = set(self._free)

    def block(self, block: Block) -> Block:
        """Choose in a block and in those inside it."""
        self._keep(operands(block.result))
        chosen = [self._binding(b) for b in reversed(block.bindings)]
        return Block(tuple(reversed(chosen)), block.result)

    def _keep(self, atoms: Iterable[Expr]) -> None:
        self._kept.update(map(self._buffers.of, atoms))

    def _binding(self, binding: Binding) -> Binding:
        value = binding.value
        if isinstance(value, If):
            # A block is followed by what follows the `If`, not by the other block.
            later = set(self._kept)
            other = self.block(value.else_block)
            after, self._kept = self._kept, later
            value = If(value.condition, self.block(value.then_block), other)
            self._kept |= after
        elif isinstance(value, Function):
            later, self._kept = self._kept, set(self._free)
            # A closure keeps what it captures from its first binding to its last.
            self._keep(_read(value).intersection(free_vars(value)))
            value = replace(value, body=self.block(value.body))
            self._kept = later
            self._keep(free_vars(value))
        elif isinstance(value, Call) and isinstance(value.callee, Op) and value.callee.enough:
            value = self._chosen(value.callee, value)
        self._keep(operands(value))
        return with_value(binding, value)

    def _chosen(self, op: Op, call: Call) -> Call:
        """Return the call with the set of arguments that keeps the least memory alive."""
        given = {n: call.args[op.schema.index[n]] for n in _optional(op)}
        known = {**self._of_forward(op, given), **{n: a for n, a in given.items() if a is not None}}
        sets = [names for names in op.enough if all(n in known for n in names)]
        if not sets:
            return call

        def cost(names: tuple[str, ...]) -> tuple[int, int]:
            used = {self._buffers.of(known[n]) for n in names}
            kept = (b for b in used if not isinstance(b, Constant) and b not in self._kept)
            bytes_ = sum(type_bytes(type_of(b)) for b in kept)
            return bytes_, sum(given[n] is None for n in names)

        best = min(sets, key=cost)
        args = list(call.args)
        for name in given:
            args[op.schema.index[name]] = known[name] if name in best else None
        same = all(a is b for a, b in zip(args, call.args, strict=True))
        return call if same else Call(op, tuple(args))

    def _of_forward(self, op: Op, given: dict[str, Any]) -> dict[str, Expr]:
        """Return the arguments of the forward call whose result is given, if nobody writes them."""
        y = given.get("y")
        if not isinstance(y, Var):
            return {}
        call = self._values.get(y)
        if not isinstance(call, Call) or op.forward is None or call.callee is not op.forward:
            return {}
        slots = op.forward.schema.index
        found = {n: call.args[slots[n]] for n in given if n in slots}
        return {
            n: a
            for n, a in found.items()
            if isinstance(a, Var)
            and type_of(a) == type_of(y)
            and self._buffers.of(a) not in self._buffers.written
        }


def _optional(op: Op) -> list[str]:
    """Return the names of the optional tensors among which an operator has the choice."""
    return [s.name for s in op.slots if s.kind == "tensor" and s.optional] if op.enough else []


def _read(closure: Function) -> set[Expr]:
    """Return what a closure uses, where it has no choice."""
    found: set[Expr] = set(operands(closure.body.result))
    for binding in bindings(closure):
        value = binding.value
        for block in inner_blocks(value):
            found.update(operands(block.result))
        if isinstance(value, Call) and isinstance(value.callee, Op):
            choice = {value.callee.schema.index[n] for n in _optional(value.callee)}
            args = tuple(a for i, a in enumerate(value.args) if i not in choice)
            value = Call(value.callee, args)
        found.update(operands(value))
    return found
