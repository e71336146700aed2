"""The backward sweep over one block: from the gradients of its result to those of what it uses.

The gradient rules are the same Python functions that the eager tape calls; here they run on symbols
and so append their operators to the program. What was read from a buffer that is written in place
later cannot be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from meta import op
from meta.base.errors import GradientError, MetaError
from meta.dialect.core.ir_calls import called_op, flat_atoms
from meta.grad.core import Rule, rule_of
from meta.ir import (
    UNKNOWN,
    Binding,
    Block,
    Call,
    DataType,
    Effect,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    Primitive,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from meta.ir.printer import first_line
from meta.op.core import Op
from meta.op.core.tracing import Symbol, Trace, Value
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.autodiff.activity import Leaf, Target, known_type, leaf_type, leaves, path
from meta.passes.autodiff.custom_rule import inline_into
from meta.passes.autodiff.data import DataGradients
from meta.runtime.ndarray import ndarray

_NO_BUFFERS: frozenset[Expr] = frozenset()


class LaterWrites:
    """The writes of a module: those of operators and of the functions that it calls."""

    def __init__(self, module: Module) -> None:
        # By variable: the buffers of its function, and which of them are written after it is bound.
        self._later: dict[Var, tuple[AliasSets, frozenset[Expr]]] = {}
        summaries = AliasSummaries(module)
        for function in module.functions.values():
            self._walk(function.body, AliasSets(function, summaries), _NO_BUFFERS)

    def overwritten(self, binding: Binding, value: Expr) -> bool:
        """Whether the memory of an atom that a binding reads or makes is written later."""
        buffers, later = self._later[binding.var]
        return bool(later) and buffers.of(value) in later

    def written_by(self, binding: Binding, value: Expr) -> bool:
        """Whether a binding writes to the memory of an atom."""
        buffers, _ = self._later[binding.var]
        return buffers.of(value) in buffers.written_by(binding)

    def _walk(self, block: Block, buffers: AliasSets, later: frozenset[Expr]) -> frozenset[Expr]:
        """Go through a block from its end; return what is written in it or later."""
        for binding in reversed(block.bindings):
            self._later[binding.var] = (buffers, later)
            value = binding.value
            if isinstance(value, If):
                blocks = (value.then_block, value.else_block)
                later = _NO_BUFFERS.union(*(self._walk(b, buffers, later) for b in blocks))
            else:
                later |= buffers.written_by(binding)
        return later


@dataclass(frozen=True, slots=True)
class Pullback:
    """A function from gradients of results to gradients of what they were computed from: a closure,
    a global function that takes what it needs besides as ``args``, or one that becomes a part of
    the code.

    ``outputs`` are the leaves, by number, of the computed variable that it takes gradients of;
    ``targets`` say, for each gradient that it returns, whose it is (None: nobody asks).
    """

    callee: Var | GlobalVar | Function
    outputs: Sequence[int]
    targets: Sequence[Leaf | None]
    args: Sequence[Any] = ()


class BackwardSweep:
    """Gradients so far, by leaf, and the trace to which their computation is appended."""

    def __init__(
        self,
        data: DataGradients,
        writes: LaterWrites,
        pullbacks: dict[Var, Pullback],
        trace: Trace,
    ) -> None:
        self.activity, self.data = data.activity, data
        self.writes, self.pullbacks, self.trace = writes, pullbacks, trace
        self._adjoint: dict[Leaf, Value] = {}
        # Of data values, by the constructor that made them: what their fields have so far.
        self._parts: dict[Leaf, dict[str, dict[tuple[int, int], Value]]] = {}

    def seed(self, result: Expr, numbers: Iterable[int], types: Sequence[Any]) -> tuple[Var, ...]:
        """Create a parameter ``dy`` per given leaf of the result; its gradient starts with it."""
        found, dys = leaves(result), []
        for k, (number, type_) in enumerate(zip(numbers, types, strict=True)):
            var, symbol = self.trace.parameter(type_, "dy" if len(types) == 1 else f"dy{k}")
            dys.append(var)
            self.trace.run(self._accumulate, found[number], symbol)
        return tuple(dys)

    def gradients(self, targets: Iterable[Target]) -> tuple[Any, ...]:
        """Return the gradients of targets, zeros for what nothing depended on."""
        self.trace.site = lambda: None
        found: tuple[Any, ...] = self.trace.run(lambda: tuple(map(self._gradient, targets)))
        return found

    def back(self, bindings: Sequence[Binding]) -> None:
        """Propagate the gradients of all bindings' variables to what these were computed from."""
        for binding in reversed(bindings):
            own = [(binding.var, i) for i in range(len(leaves(binding.var)))]
            if any(leaf in self._adjoint or leaf in self._parts for leaf in own):
                self.trace.site = partial(getattr, binding, "span")
                self.trace.run(self._binding, binding, own)

    def _binding(self, binding: Binding, own: list[Leaf]) -> None:
        value = binding.value
        called = called_op(value)
        if isinstance(value, Primitive) and value.name == "construct":
            self._construct(value, own[0])
            return
        dys = [self._taken(leaf) for leaf in own]
        if binding.var in self.pullbacks:
            self._call_pullback(self.pullbacks[binding.var], binding, dys)
        elif isinstance(value, Primitive) and value.name == "get_field":
            self._get_field(value, dys)
        elif called is not None:
            assert isinstance(value, Call)
            self._call_rule(called, value, binding, dys)
        elif value.effect is Effect.READ:
            raise GradientError(
                "a gradient would have to flow through a reference",
                found=first_line(Block((binding,), binding.var), binding),
                hint="gradients of references are not compiled: call backward on what the model "
                "returns (the tape follows what is run), or compute with tensors, tuples, data "
                "values and loops instead",
                span=binding.span,
            )
        else:
            for leaf, gradient in zip(leaves(value), dys, strict=True):
                if gradient is not None:
                    self._accumulate(leaf, gradient)

    def _construct(self, value: Primitive, leaf: Leaf) -> None:
        """Give the fields of a data value their gradients: those known as such, and what is in the
        gradient of the whole.
        """
        (constructor,), type_ = value.details, value.type
        assert isinstance(type_, DataType)
        held = self.activity.held(type_, constructor)
        targets = [leaves(value.operands[i])[n] for i, n in held]
        parts = self._parts.get(leaf, {})
        if parts.keys() == {constructor}:
            for target, at in zip(targets, held, strict=True):
                if at in parts[constructor]:
                    self._accumulate(target, parts[constructor][at])
            del self._parts[leaf]
        dy = self._taken(leaf)
        if dy is not None and held:
            values = [self._field(value.operands[i], n) for i, n in held]
            found = self.data.fields(self.trace, type_, constructor, dy, dict(enumerate(values)))
            for target, gradient in zip(targets, found, strict=True):
                self._accumulate(target, gradient)

    def _field(self, atom: Expr, number: int) -> Value:
        """Return a leaf of an atom."""
        value = self._value(atom)
        for i in path(known_type(atom), number):
            value = value[i]
        found: Value = value
        return found

    def _get_field(self, value: Primitive, dys: list[Value | None]) -> None:
        (whole,), (constructor, index) = value.operands, value.details
        (leaf,) = leaves(whole)
        if leaf is None or not self.activity.is_active(leaf):
            return
        fields = self._parts.setdefault(leaf, {}).setdefault(constructor, {})
        for n, dy in enumerate(dys):
            if dy is not None:
                old = fields.get((index, n))
                fields[index, n] = dy if old is None else self._sum(old, dy)

    def _call_pullback(self, pullback: Pullback, binding: Binding, dys: list[Value | None]) -> None:
        if any(self.writes.overwritten(binding, a) for a in pullback.args if isinstance(a, Expr)):
            raise GradientError(
                "an argument of a checkpointed block is written in place after the call",
                hint="write to a copy (meta.copy)",
                span=binding.span,
            )
        y = binding.var
        given = [self._zeros((y, i)) if (d := dys[i]) is None else d for i in pullback.outputs]
        args = (*(d.atom for d in given), *pullback.args)
        if isinstance(pullback.callee, Function):
            found = inline_into(self.trace.builder, pullback.callee, args)
            gradients = self.trace.symbols(Tuple(tuple(found)))
        else:
            assert isinstance(pullback.callee.type, FuncType)
            gradients = self.trace.emit(Call(pullback.callee, args), pullback.callee.type.result)
        for target, gradient in zip(pullback.targets, gradients, strict=True):
            self._accumulate(target, gradient)

    def _call_rule(self, called: Op, call: Call, binding: Binding, dys: list[Value | None]) -> None:
        rule = rule_of(called)
        y = self._value(binding.var)
        dy: Any = dys[0]
        if isinstance(y, tuple):
            like = op.zeros_like
            dy = tuple(like(f) if d is None else d for d, f in zip(dys, y, strict=True))
        try:
            gradients = rule(self._saved(rule, call, binding, y, dy))
        except MetaError as error:
            error.note(f"in the gradient of {called.name}, called at {binding.span}")
            raise
        for i, gradient in zip(called.schema.tensor_slots, gradients, strict=True):
            targets = leaves(call.args[i])
            several = called.schema.slots[i].kind == "tensors"
            given = rule.several(i, gradient, len(targets)) if several else (gradient,)
            for place, (target, g) in enumerate(zip(targets, given, strict=False)):
                if target is None or not self.activity.is_active(target):
                    continue
                if g is None:
                    raise GradientError(
                        f"there is no gradient for argument {called.schema.names[i]!r}",
                        op=called.name,
                        span=binding.span,
                    )
                if isinstance(g, ndarray):
                    g = self.trace.lift_tensor(g)
                wanted = leaf_type(target)
                rule.require(i, g.type if isinstance(g, Symbol) else g, wanted, binding.span)
                if not rule.site.is_own and _is_shape_unknown(g.type, wanted):
                    # As many elements, which is looked at when it runs: of a rule of others.
                    argument = self._value(call.args[i])
                    g = op.reshape_like(g, argument[place] if several else argument)
                self._accumulate(target, g)

    def _saved(self, rule: Rule, call: Call, binding: Binding, y: Any, dy: Any) -> dict[str, Any]:
        values: dict[str, Any] = {rule.dy: dy}
        for name, index, type_only in rule.kept:
            atom = binding.var if index < 0 else call.args[index]
            if not type_only:
                self._require_unwritten(rule, name, atom, binding)
            value = y if index < 0 else self._value(atom)
            values[name] = _types(value) if type_only else value
        return values

    def _require_unwritten(self, rule: Rule, name: str, value: Any, binding: Binding) -> None:
        if any(self.writes.overwritten(binding, a) for a in flat_atoms(value)):
            raise GradientError(
                f"{name!r}, which the gradient needs, is written in place after the call",
                op=rule.op.name,
                hint="write to a copy (meta.copy)",
                span=binding.span,
            )

    def _value(self, argument: Any) -> Any:
        """Return what a rule is given for an argument: symbols, or a literal."""
        if isinstance(argument, Tuple):
            return tuple(self._value(f) for f in argument.fields)
        if not isinstance(argument, Expr):
            return argument
        return self.trace.unpack(argument, known_type(argument))

    def _accumulate(self, leaf: Leaf | None, gradient: Value) -> None:
        if leaf is not None and self.activity.is_active(leaf):
            old = self._adjoint.get(leaf)
            self._adjoint[leaf] = gradient if old is None else self._sum(old, gradient)

    def _sum(self, a: Value, b: Value) -> Value:
        if isinstance(a.type, DataType):
            return self.data.add(self.trace, a, b)
        total: Value = op.add(a, b)
        return total

    def _taken(self, leaf: Leaf) -> Value | None:
        """Return the gradient of a leaf, None if it has none; it is complete."""
        found = self._adjoint.pop(leaf, None)
        for constructor, parts in self._parts.pop(leaf, {}).items():
            type_ = leaf_type(leaf)
            assert isinstance(type_, DataType)
            whole = self.data.whole(self.trace, type_, constructor, parts, self._atom(leaf))
            found = whole if found is None else self._sum(found, whole)
        return found

    def _gradient(self, target: Target) -> Any:
        if isinstance(target, list):
            return tuple(map(self._gradient, target))
        found = self._taken(target)
        return self._zeros(target) if found is None else found

    def _zeros(self, leaf: Leaf) -> Value:
        type_ = leaf_type(leaf)
        if isinstance(type_, DataType):
            return self.data.zero(self.trace, type_)
        assert isinstance(type_, TensorType)
        zeros: Symbol = op.zeros_like(Symbol(self.trace, self._atom(leaf), type_))
        return zeros

    def _atom(self, leaf: Leaf) -> Expr:
        """Return the atom of a leaf, which is taken out of tuples."""
        atom: Expr = leaf[0]
        for field in path(known_type(atom), leaf[1]):
            value = TupleGetItem(atom, field)
            atom = self.trace.builder.emit(value, span=self.trace.site())
        return atom


def _is_shape_unknown(found: TensorType, wanted: Any) -> bool:
    """Whether it depends on the extents whether a gradient has the shape of its argument."""
    return found.shape != wanted.shape or UNKNOWN in found.shape


def _types(value: Any) -> Any:
    """Return the types of symbols; a symbol itself if only its value knows its shape."""
    if isinstance(value, tuple):
        return tuple(_types(v) for v in value)
    is_known = isinstance(value, Symbol) and UNKNOWN not in value.shape
    return value.type if is_known else value
