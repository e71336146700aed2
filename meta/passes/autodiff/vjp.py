"""Functions and conditionals that return their value together with its pullback.

``J[f](x...) = (y, fn(dy...) -> (dx...))``, the backpropagators of B. A. Pearlmutter and J. M.
Siskind, "Reverse-mode AD in a functional framework: Lambda the ultimate backpropagator", TOPLAS
2008. What the backward computation needs of the forward one is what the closure captures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from meta import op
from meta.base.errors import GradientError
from meta.cost.flops import is_product
from meta.dialect.core.ir_calls import atom_type, called_op, leaf_types
from meta.ir import (
    CHECKPOINT,
    Binding,
    Block,
    BlockBuilder,
    Call,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    TypeDefinition,
    Var,
    type_of,
    with_fresh_vars,
)
from meta.ir.names import Names, is_identifier
from meta.ir.types import call_type, with_declared_names
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.autodiff.activity import (
    Activity,
    Leaf,
    Target,
    carries_gradient,
    known_type,
    leaf_type,
    leaves,
    result_type,
)
from meta.passes.autodiff.custom_rule import CustomRule, ResidualCalls, fields_of
from meta.passes.autodiff.data import DataGradients
from meta.passes.autodiff.sweep import BackwardSweep, LaterWrites, Pullback


@dataclass(frozen=True, slots=True)
class _Backward:
    """A pullback: from gradients of ``outputs``, leaves of the result, to those of ``targets``."""

    data: DataGradients
    outputs: Sequence[int]
    result: Type
    targets: Sequence[Target]

    @property
    def types(self) -> list[Type]:
        """The types of what it takes."""
        leaves_ = leaf_types(self.result)
        return [self.data.type_of(leaves_[i]) for i in self.outputs]

    @property
    def gradients(self) -> tuple[Type, ...]:
        """The types of what it returns."""
        return tuple(map(self._of, self.targets))

    @property
    def type(self) -> FuncType:
        """The type of the closure."""
        return FuncType(tuple(self.types), TupleType(self.gradients))

    def _of(self, target: Target) -> Type:
        if isinstance(target, list):
            return TupleType(tuple(map(self._of, target)))
        return self.data.type_of(leaf_type(target))


_ValueAndPullback = tuple[Expr, Type, Sequence[int], Sequence[Leaf | None]]
"""What yields a value and its pullback, its type, and the pullback's outputs and targets."""


class Differentiator:
    """Writes the differentiated form of functions and blocks of a module."""

    def __init__(
        self,
        module: Module,
        activity: Activity,
        transposed: Mapping[str, Function] = MappingProxyType({}),
    ) -> None:
        self.module, self.activity, self._transposed = module, activity, transposed
        self._writes = LaterWrites(module)
        self._summaries = AliasSummaries(module)
        taken = Names(module.functions)
        self._data = DataGradients(activity, taken)
        self._names = {
            name: taken.unique(f"{name}_backward" if self._is_again(name) else f"{name}_vjp")
            for name in activity.functions
            if activity.results(name)
        }
        self._kept = ResidualCalls(taken)
        # By checkpointed function of which products are kept: the one that returns them, too.
        self._keeping = {
            name: taken.unique(f"{name}_kept") for name in self._names if self._products(name)
        }

    def functions(self) -> dict[str, Function]:
        """Return ``<name>_vjp`` of functions with a gradient, or ``<name>_backward``, and what they
        and main call besides: main is written first.
        """
        made = {}
        for name, new in self._names.items():
            function = self.module.functions[name]
            if self._is_again(name):
                made[new] = with_fresh_vars(self._again(name))
                continue
            body = self._with_pullback(function.body, self._backward_of(name))
            # The original may stay, for calls without a gradient: the two share no variable.
            made[new] = with_fresh_vars(
                Function(function.params, body, self._type(name).result, dict(function.attrs))
            )
        for name, new in self._keeping.items():
            function, kept = self.module.functions[name], Tuple(tuple(self._products(name)))
            body = Block(function.body.bindings, Tuple((function.body.result, kept)))
            made[new] = with_fresh_vars(
                Function(function.params, body, type_of(body.result), dict(function.attrs))
            )
        return made | self._data.functions | self._kept.functions

    def types(self) -> dict[str, TypeDefinition]:
        """Return the data types of gradients."""
        return self._data.types

    def inlined_main(self, wrt: Sequence[Target]) -> Function:
        """Return main as ``(dy..., params...) -> (y, gradients)``."""
        main, trace = self.module.main, Trace()
        pullbacks = self._forward(main.body, trace.builder)
        dys, gradients = self._sweep(main.body, pullbacks, self._main_backward(wrt), trace)
        result = Tuple((main.body.result, gradients))
        body = trace.builder.finish(result)
        return Function((*dys, *main.params), body, type_of(result), dict(main.attrs))

    def main_with_pullback(self, wrt: Sequence[Target]) -> Function:
        """Return main as ``(params...) -> (y, fn(dy...) -> gradients)``."""
        main = self.module.main
        body = self._with_pullback(main.body, self._main_backward(wrt))
        return Function(main.params, body, type_of(body.result), dict(main.attrs))

    def _is_again(self, name: str) -> bool:
        """Whether a function is called again for its gradients."""
        return CHECKPOINT in self.module.functions[name].attrs

    def _products(self, name: str) -> list[Var]:
        """Return the products in a checkpointed function that are kept: not what is written."""
        function = self.module.functions[name]
        if function.attrs.get(CHECKPOINT) != "products":
            return []
        buffers = AliasSets(function, self._summaries)
        return [
            b.var
            for b in function.body.bindings
            if is_product(called_op(b.value)) and buffers.of(b.var) not in buffers.written
        ]

    def _again(self, name: str) -> Function:
        """Return a function as ``(dys..., kept..., params...) -> gradients``: it does the same
        again, but for what is kept, on arguments that count as known only when the gradients are,
        and goes back.

        What the function writes to is a copy here, so that it is written once.
        """
        function, backward, trace = self.module.functions[name], self._backward_of(name), Trace()
        pullbacks: dict[Var, Pullback] = {}
        sweep = BackwardSweep(self._data, self._writes, pullbacks, trace)
        dys = sweep.seed(function.body.result, backward.outputs, backward.types)
        known = tuple(d for d in dys if isinstance(d.type, TensorType))
        params = tuple(Var(p.name, p.type) for p in function.params)
        written = self._summaries[name].written

        def later(value: Var) -> Expr:
            is_tensor = isinstance(value.type, TensorType) and known
            return Call(op.optimization_barrier, (value, Tuple(known))) if is_tensor else value

        for i, (old, new) in enumerate(zip(function.params, params, strict=True)):
            value = later(new)
            if i in written:
                held = trace.builder.emit(value, type=new.type, name=new.name)
                value = Call(op.copy, (held,))
            trace.builder.append(Binding(old, value))
        kept = {v: Var(v.name, v.type) for v in self._products(name)}
        made = {v: later(new) for v, new in kept.items()}
        pullbacks.update(self._forward(function.body, trace.builder, made))
        sweep.back(function.body.bindings)
        gradients = trace.atom(sweep.gradients(backward.targets))
        return Function(
            (*dys, *kept.values(), *params), trace.builder.finish(gradients), backward.type.result
        )

    def _main_backward(self, wrt: Sequence[Target]) -> _Backward:
        result = known_type(self.module.main.body.result)
        outputs = [i for i, t in enumerate(leaf_types(result)) if carries_gradient(t)]
        return _Backward(self._data, outputs, result, wrt)

    def _backward_of(self, name: str) -> _Backward:
        function = self.module.functions[name]
        targets = [leaf for p in function.params for leaf in self.activity.of(p)]
        return _Backward(self._data, self.activity.results(name), result_type(function), targets)

    def _type(self, name: str) -> FuncType:
        """Return the type of a differentiated function, by the name of the original."""
        function = self.module.functions[name]
        params = tuple(known_type(p) for p in function.params)
        return FuncType(params, TupleType((result_type(function), self._backward_of(name).type)))

    def _with_pullback(self, block: Block, backward: _Backward) -> Block:
        """Return a block that yields its result and the closure."""
        builder, trace = BlockBuilder(), Trace()
        pullbacks = self._forward(block, builder)
        dys, gradients = self._sweep(block, pullbacks, backward, trace)
        closure = Function(dys, trace.builder.finish(gradients), backward.type.result)
        pullback = _eta_reduced(closure) or builder.emit(closure, name="pullback")
        return builder.finish(Tuple((block.result, pullback)))

    def _sweep(
        self, block: Block, pullbacks: dict[Var, Pullback], backward: _Backward, trace: Trace
    ) -> tuple[tuple[Var, ...], Expr]:
        """Append the backward computation to a trace; return its parameters and its result."""
        sweep = BackwardSweep(self._data, self._writes, pullbacks, trace)
        dys = sweep.seed(block.result, backward.outputs, backward.types)
        sweep.back(block.bindings)
        return dys, trace.atom(sweep.gradients(backward.targets))

    def _forward(
        self, block: Block, builder: BlockBuilder, known: Mapping[Var, Expr] = MappingProxyType({})
    ) -> dict[Var, Pullback]:
        """Append a block's bindings, those that yield a pullback in their differentiated form, and
        those that are known as what they are.
        """
        pullbacks = {}
        for binding in block.bindings:
            value, var = binding.value, binding.var
            if var in known:
                builder.append(Binding(var, known[var], binding.span))
            elif not self.activity.outputs(var):
                builder.append(binding)
            elif isinstance(value, If):
                pullbacks[var] = self._append(builder, binding, self._conditional(value, var))
            elif isinstance(value, Call) and isinstance(value.callee, GlobalVar):
                if value.callee.name in self.activity.ruled:
                    pullbacks[var] = self._append_ruled(builder, binding, value)
                    continue
                if self._is_again(value.callee.name):
                    pullbacks[var] = self._append_kept(builder, binding)
                    continue
                pullbacks[var] = self._append(builder, binding, self._call(value, var))
            else:
                builder.append(binding)
        return pullbacks

    def _append(self, builder: BlockBuilder, binding: Binding, made: _ValueAndPullback) -> Pullback:
        """Append what yields a value and its pullback, and take the two apart."""
        (pair, type_, outputs, targets), var, span = made, binding.var, binding.span
        both = builder.emit(pair, type=type_, span=span)
        builder.append(Binding(var, TupleGetItem(both, 0), span))
        name = f"{var.name}_pullback" if is_identifier(var.name) else "pullback"
        closure = builder.emit(TupleGetItem(both, 1), name=name, span=span)
        return Pullback(closure, outputs, targets)

    def _conditional(self, value: If, var: Var) -> _ValueAndPullback:
        blocks = (value.then_block, value.else_block)
        outputs, captured = self.activity.outputs(var), self.activity.captured(blocks)
        backward = _Backward(self._data, outputs, known_type(var), captured)
        then, other = (self._with_pullback(b, backward) for b in blocks)
        type_ = TupleType((known_type(var), backward.type))
        return If(value.condition, then, other), type_, outputs, captured

    def _targets(self, call: Call) -> list[Leaf | None]:
        """Return whose the gradients are that the pullback of a call of a function returns."""
        assert isinstance(call.callee, GlobalVar)
        targets: list[Leaf | None] = []
        for param, arg in zip(
            self.module.functions[call.callee.name].params, call.args, strict=True
        ):
            given = leaves(arg)
            targets += [given[number] for _, number in self.activity.of(param)]
        return targets

    def _append_kept(self, builder: BlockBuilder, binding: Binding) -> Pullback:
        """Append a call that is done again later, and before it copies of what it writes to."""
        call = binding.value
        assert isinstance(call, Call) and isinstance(call.callee, GlobalVar)
        name, args = call.callee.name, list(call.args)
        for i in self._summaries[name].written:
            type_ = atom_type(args[i])
            if not isinstance(type_, TensorType):
                raise GradientError(
                    "a checkpointed function writes to what is no tensor",
                    found=f"argument {i} of @{name}, {type_}",
                    span=binding.span,
                )
            args[i] = builder.emit(Call(op.copy, (args[i],)), type=type_)
        if any(self._writes.written_by(binding, a) for a in args if isinstance(a, Expr)):
            raise GradientError(
                "a checkpointed function writes to memory that it is given twice",
                hint="give it a copy (meta.copy)",
                span=binding.span,
            )
        backward, params = self._backward_of(name), self.module.functions[name].params
        kept = [Var(v.name, v.type) for v in self._products(name)]
        if not kept:
            builder.append(binding)
        else:
            if self._writes.overwritten(binding, binding.var):
                raise GradientError(
                    "the result of a checkpointed function, of which products are kept, is written",
                    hint='write to a copy (meta.copy), or keep "nothing"',
                    span=binding.span,
                )
            own = tuple(map(known_type, (binding.var, *kept)))
            result = TupleType((own[0], TupleType(own[1:])))
            keeping = FuncType(tuple(map(known_type, params)), result)
            callee = GlobalVar(self._keeping[name], keeping)
            both = builder.emit(Call(callee, call.args), type=result, span=binding.span)
            builder.append(Binding(binding.var, TupleGetItem(both, 0), binding.span))
            tuple_ = builder.emit(TupleGetItem(both, 1))
            for i, var in enumerate(kept):
                builder.append(Binding(var, TupleGetItem(tuple_, i), binding.span))
        types = (*backward.types, *map(known_type, (*kept, *params)))
        callee = GlobalVar(self._names[name], FuncType(types, backward.type.result))
        return Pullback(callee, backward.outputs, self._targets(call), [*kept, *args])

    def _append_ruled(self, builder: BlockBuilder, binding: Binding, call: Call) -> Pullback:
        """Append a call of a function with a derivative of its own."""
        assert isinstance(call.callee, GlobalVar)
        rule = self.activity.ruled[call.callee.name]
        self._require_unwritten(rule, call, binding)
        targets = [
            leaf
            for arg in rule.own_args(call)
            for leaf, type_ in zip(leaves(arg), leaf_types(known_type(arg)), strict=True)
            if carries_gradient(type_)
        ]
        known, call = self._kept.call(builder, rule, call)
        builder.append(Binding(binding.var, call, binding.span))
        back, args = known.bwd, call.args
        if back is not None:
            args = known.kept_args(call, fields_of(builder, binding.var))
        else:
            moving = [a for a in rule.own_args(call) if carries_gradient(known_type(a))]
            back, args = self._transposed[rule.name], (*args, *moving)
        return Pullback(back, self.activity.outputs(binding.var), targets, args)

    def _require_unwritten(self, rule: CustomRule, call: Call, binding: Binding) -> None:
        """Raise GradientError if what a rule keeps is written later, or by the function itself."""
        read = set(range(len(call.args)))
        if rule.fwd is not None:
            kept = AliasSets(rule.fwd, self._summaries)
            params = kept.sharing([rule.fwd.body.result])
            read = {i for i, p in enumerate(rule.fwd.params) if p in params}
        atoms = [*(call.args[i] for i in read), binding.var]
        if self._summaries[rule.name].written or any(
            isinstance(a, Expr) and self._writes.overwritten(binding, a) for a in atoms
        ):
            raise GradientError(
                f"what the rule of {rule.name} needs is written in place",
                hint="write to a copy (meta.copy)",
                span=binding.span,
            )

    def _call(self, call: Call, var: Var) -> _ValueAndPullback:
        assert isinstance(call.callee, GlobalVar)
        callee = call.callee.name
        function_type, targets = self._type(callee), self._targets(call)
        # The types of what is here; the function may not know the names of extents.
        whole = call_type(function_type, [atom_type(a) for a in call.args])
        type_ = with_declared_names(whole, self._here(callee, known_type(var), targets))
        differentiated = Call(GlobalVar(self._names[callee], function_type), call.args)
        return differentiated, type_, self.activity.results(callee), targets

    def _here(self, callee: str, result: Type, targets: Sequence[Leaf | None]) -> Type:
        """Return the type of a result with its pullback, by whose gradients that returns."""
        backward = self._backward_of(callee)
        own = zip(backward.gradients, targets, strict=True)
        types = (t if leaf is None else self._data.type_of(leaf_type(leaf)) for t, leaf in own)
        outputs = _Backward(self._data, backward.outputs, result, ()).types
        return TupleType((result, FuncType(tuple(outputs), TupleType(tuple(types)))))


def _eta_reduced(function: Function) -> Var | None:
    """Return the closure that a function calls with its own parameters to return its result.

    It can stand in place of the function, so that a loop makes one closure per step, not two.
    """
    bindings, result = function.body.bindings, function.body.result
    call = bindings[0].value if bindings else None
    if not isinstance(call, Call) or call.args != function.params:
        return None
    values = [b.value for b in bindings[1:]]
    fields = [v.index for v in values if isinstance(v, TupleGetItem) and v.value is bindings[0].var]
    same = isinstance(result, Tuple) and result.fields == tuple(b.var for b in bindings[1:])
    whole = TupleType(tuple(known_type(b.var) for b in bindings[1:])) == bindings[0].var.type
    in_order = fields == list(range(len(values)))
    return call.callee if isinstance(call.callee, Var) and same and whole and in_order else None
