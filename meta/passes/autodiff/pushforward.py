"""Forward mode: each value of a program beside its tangent, computed in the program's own order.

No operator states a rule of its own: it is derived from the gradient's (`transposed_rule`), for
each call by itself, so that tangents follow the values and nothing is stored for later. A function
through which tangents go gets a companion ``f_jvp``, a loop among them; an `If` yields the tangents
of its result beside it. The tangent of a data value is a value of the type of its gradient
(`DataGradients`): that of a gradient program holds what the forward computation has kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from meta import op
from meta.base.errors import GradientError
from meta.dialect.core.ir_calls import called_op, leaf_types
from meta.ir import (
    CHECKPOINT,
    Binding,
    Block,
    Call,
    DataType,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    Primitive,
    RefType,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    TypeDefinition,
    Var,
    type_of,
    with_fresh_vars,
)
from meta.ir.names import Names
from meta.ir.printer import first_line
from meta.op.core.tracing import Trace
from meta.passes.autodiff.activity import (
    Activity,
    Leaf,
    Target,
    carries_gradient,
    known_type,
    leaf_type,
    leaves,
    result_type,
    target_leaves,
)
from meta.passes.autodiff.custom_rule import ResidualCalls, inline_into
from meta.passes.autodiff.data import DataGradients
from meta.passes.autodiff.transposed_rule import flat_args, transposed_rule

Tangents = dict[Leaf, Expr]
"""By leaf, the atom of its tangent; what is not there has zeros."""


class Pushforward:
    """Writes functions and blocks of a module that yield tangents beside their results."""

    def __init__(
        self, module: Module, activity: Activity, transposed: Mapping[str, Function]
    ) -> None:
        self.module, self.activity, self._transposed = module, activity, transposed
        taken = Names(module.functions)
        self._data = DataGradients(activity, taken)
        self._names = {
            name: taken.unique(f"{name}_jvp")
            for name in activity.functions
            if activity.results(name)
        }
        self._kept = ResidualCalls(taken)

    def types(self) -> dict[str, TypeDefinition]:
        """Return the data types of tangents."""
        return self._data.types

    def main(self, wrt: Sequence[Target]) -> Function:
        """Return main as ``(params..., tangents...) -> (y, tangents of y)``."""
        main = self.module.main
        starts = [leaf for target in wrt for leaf in target_leaves(target)]
        types = leaf_types(known_type(main.body.result))
        outputs = [i for i, t in enumerate(types) if carries_gradient(t)]
        return self._function(main, starts, outputs)

    def functions(self) -> dict[str, Function]:
        """Return ``<name>_jvp`` of the functions through which tangents go."""
        made = {}
        for name, new in self._names.items():
            function = self.module.functions[name]
            starts = [leaf for p in function.params for leaf in self.activity.of(p)]
            made[new] = with_fresh_vars(
                self._function(function, starts, self.activity.results(name))
            )
        return made | self._kept.functions

    def _function(
        self, function: Function, starts: Sequence[Leaf], outputs: Sequence[int]
    ) -> Function:
        names = Names(p.name for p in function.params)
        tangents = {
            leaf: Var(names.unique(f"d{leaf[0].name}"), self._data.type_of(leaf_type(leaf)))
            for leaf in starts
        }
        body = self._block(function.body, outputs, dict[Leaf, Expr](tangents))
        attrs = {k: v for k, v in function.attrs.items() if k != CHECKPOINT}
        return Function((*function.params, *tangents.values()), body, type_of(body.result), attrs)

    def _block(self, block: Block, outputs: Sequence[int], tangents: Tangents) -> Block:
        """Return a block that yields ``(result, tangents of these leaves of it)``."""
        trace = Trace()
        for binding in block.bindings:
            trace.site = partial(getattr, binding, "span")
            trace.run(self._binding, binding, trace, tangents)
        trace.site = lambda: None
        found = leaves(block.result)
        results = trace.run(
            lambda: [self._tangent(found[i], block.result, i, trace, tangents) for i in outputs]
        )
        return trace.builder.finish(Tuple((block.result, Tuple(tuple(results)))))

    def _tangent(
        self,
        leaf: Leaf | None,
        value: Expr,
        number: int,
        trace: Trace,
        tangents: Tangents,
    ) -> Expr:
        """Return the tangent of a leaf of an atom: zeros like it where it has none."""
        if leaf in tangents:
            return tangents[leaf]
        type_ = leaf_types(known_type(value))[number]
        if isinstance(type_, DataType):
            return self._data.zero(trace, type_).atom
        if not isinstance(type_, TensorType):
            raise _through_data(None)
        zeros: Expr = op.zeros_like(_flat(trace.unpack(value, known_type(value)))[number]).atom
        return zeros

    def _binding(self, binding: Binding, trace: Trace, tangents: Tangents) -> None:
        value, var = binding.value, binding.var
        outputs = self.activity.outputs(var)
        called = called_op(value)
        if isinstance(value, If) and outputs:
            blocks = (value.then_block, value.else_block)
            then, other = (self._block(b, outputs, dict(tangents)) for b in blocks)
            self._both(If(value.condition, then, other), binding, outputs, trace, tangents)
            return
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar) and outputs:
            if value.callee.name in self.activity.ruled:
                self._ruled(value, binding, trace, tangents)
                return
            self._both(self._call(value, trace, tangents), binding, outputs, trace, tangents)
            return
        trace.builder.append(binding)
        if called is not None:
            if outputs:
                assert isinstance(value, Call)
                self._operator(value, binding, trace, tangents)
            return
        own = [(var, i) for i in range(len(leaves(var)))]
        if isinstance(value, Primitive) and value.name in ("construct", "get_field"):
            if outputs:
                trace.run(self._data_value, value, var, trace, tangents)
            return
        if value.opaque or any(isinstance(t, RefType) for t in leaf_types(known_type(var))):
            if any(self.activity.is_active(leaf) for leaf in own):
                raise _through_data(binding)
            return
        for leaf, source in zip(own, leaves(value), strict=False):
            if source in tangents:
                tangents[leaf] = tangents[source]

    def _data_value(self, value: Primitive, var: Var, trace: Trace, tangents: Tangents) -> None:
        """Append the tangent of a data value that is made, or of a field that is read."""

        def lifted(atom: Expr) -> Any:
            return trace.unpack(atom, known_type(atom))

        if value.name == "construct":
            type_, (constructor,) = known_type(var), value.details
            assert isinstance(type_, DataType)
            parts = {
                (number, n): lifted(tangents[leaf])
                for number, field in enumerate(value.operands)
                for n, leaf in enumerate(leaves(field))
                if leaf in tangents
            }
            tangents[var, 0] = self._data.whole(trace, type_, constructor, parts, var).atom
            return
        (whole,), (constructor, number) = value.operands, value.details
        type_ = known_type(whole)
        assert isinstance(type_, DataType)
        (source,) = leaves(whole)
        if source not in tangents:
            return
        own, held = _flat(lifted(var)), self.activity.held(type_, constructor)
        fields = {k: own[n] for k, (i, n) in enumerate(held) if i == number}
        found = self._data.fields(trace, type_, constructor, lifted(tangents[source]), fields)
        for k, tangent in zip(fields, found, strict=True):
            tangents[var, held[k][1]] = tangent.atom

    def _both(
        self,
        value: Expr,
        binding: Binding,
        outputs: Sequence[int],
        trace: Trace,
        tangents: Tangents,
    ) -> None:
        """Append what yields a value and its tangents, and take the two apart."""
        var, span, builder = binding.var, binding.span, trace.builder
        types = leaf_types(known_type(var))
        own = TupleType(tuple(self._data.type_of(types[i]) for i in outputs))
        both = builder.emit(value, type=TupleType((known_type(var), own)), span=span)
        builder.append(Binding(var, TupleGetItem(both, 0), span))
        found = builder.emit(TupleGetItem(both, 1), type=own, span=span)
        for k, i in enumerate(outputs):
            of = TupleGetItem(found, k)
            tangents[var, i] = builder.emit(of, type=own.fields[k], span=span)

    def _ruled(self, call: Call, binding: Binding, trace: Trace, tangents: Tangents) -> None:
        """Append a call of a function with a derivative of its own, and the tangents."""
        assert isinstance(call.callee, GlobalVar)
        rule, var, builder = self.activity.ruled[call.callee.name], binding.var, trace.builder
        moves = [
            self._tangent(leaf, arg, n, trace, tangents)
            for arg in rule.own_args(call)
            for n, leaf in enumerate(leaves(arg))
            if carries_gradient(leaf_types(known_type(arg))[n])
        ]
        known, call = self._kept.call(builder, rule, call)
        builder.append(Binding(var, call, binding.span))
        outputs = self.activity.outputs(var)
        if rule.jvp is not None:
            found = inline_into(builder, rule.jvp, (*call.args, *moves))[-len(outputs) :]
        else:
            results = _flat(trace.unpack(var, known_type(var)))
            kept = known.kept_args(call, [y.atom for y in results])
            args = (*moves, *kept, *(results[i].atom for i in outputs))
            found = inline_into(builder, self._transposed[rule.name], args)
        tangents.update(zip([(var, i) for i in outputs], found, strict=True))

    def _call(self, call: Call, trace: Trace, tangents: Tangents) -> Call:
        """Return the call of a function's ``_jvp``."""
        assert isinstance(call.callee, GlobalVar)
        function, given = self.module.functions[call.callee.name], list[Expr]()
        for param, arg in zip(function.params, call.args, strict=True):
            found = leaves(arg)
            given += [
                self._tangent(found[n], arg, n, trace, tangents) for _, n in self.activity.of(param)
            ]
        name, own = call.callee.name, result_type(function)
        types = (leaf_types(own)[i] for i in self.activity.results(name))
        outputs = TupleType(tuple(map(self._data.type_of, types)))
        params = tuple(known_type(a) for a in (*function.params, *given))
        callee = GlobalVar(self._names[name], FuncType(params, TupleType((own, outputs))))
        return Call(callee, (*call.args, *given))

    def _operator(self, call: Call, binding: Binding, trace: Trace, tangents: Tangents) -> None:
        """Append the tangents of what an operator computed."""
        var, called = binding.var, called_op(call)
        moving = [i for i, arg in enumerate(call.args) if any(a in tangents for a in leaves(arg))]
        assert called is not None
        rule = transposed_rule(called.name, binding, moving) if moving else None
        if rule is None:
            return
        given = list[Expr]()
        for arg in flat_args([call.args[i] for i in moving]):
            for n, (leaf, type_) in enumerate(
                zip(leaves(arg), leaf_types(known_type(arg)), strict=True)
            ):
                if carries_gradient(type_):
                    given.append(self._tangent(leaf, arg, n, trace, tangents))
        results = _flat(trace.unpack(var, known_type(var))) if rule.seeds else ()
        seeds = [op.zeros_like(results[i]).atom for i in rule.seeds]
        found = trace.inline(rule.module, [*given, *seeds, *flat_args(call.args), var])
        for number, tangent in zip(rule.outputs, found, strict=True):
            tangents[var, number] = tangent.atom


def _through_data(binding: Binding | None) -> GradientError:
    return GradientError(
        "a tangent would have to go through a data value or a reference",
        found=None if binding is None else first_line(Block((binding,), binding.var), binding),
        hint="compute with tensors, tuples, conditionals and loops instead, or take the gradient "
        "(reverse mode)",
        span=None if binding is None else binding.span,
    )


def _flat(values: Any) -> list[Any]:
    """Return the symbols of a nested tuple of them."""
    return [v for part in values for v in _flat(part)] if isinstance(values, tuple) else [values]
