"""`batch`: a program of one example as a program of many, which runs each operator once.

What depends on a batched argument is batched: one axis more in front (`site`). What an operator
makes of that follows from its axes, or its rule says it (`rules`); what has neither becomes a loop
over the examples, written out. J. Bradbury et al., "JAX:
composable transformations", 2018.

A function that is called with other arguments batched is another function. A conditional whose
condition is batched computes both blocks and selects. Where a value of a data type holds what is
batched, as that of a loop which a gradient goes back through, all tensors in values of this type
are; which constructor made it does not depend on the example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from meta import op
from meta.base.device import CPU, Device
from meta.base.errors import TraceError
from meta.dialect.core.ir_calls import called_op, leaf_types
from meta.ir import (
    BWD,
    FWD,
    JVP,
    Binding,
    Block,
    Call,
    ConstructorDefinition,
    DataType,
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
    TupleType,
    Type,
    TypeDefinition,
    Var,
    type_of,
    with_fresh_vars,
)
from meta.ir.names import Names
from meta.ir.printer import first_line
from meta.op.core.tracing import BlockTrace, Trace
from meta.passes.autodiff.activity import carries_gradient
from meta.passes.autodiff.custom_rule import CustomRule, custom_rule
from meta.passes.batching import indices, layers  # noqa: F401
from meta.passes.batching.rules import batched_call
from meta.passes.batching.selection import require_selectable, selected, with_flags
from meta.passes.batching.site import Operand, Site, looped
from meta.passes.call_graph import remove_unreachable
from meta.passes.closure_flow import calls_unknown
from meta.passes.defunctionalize import defunctionalize
from meta.passes.lambda_lift import lambda_lift
from meta.passes.promote_refs import promote_refs

RANDOMNESS = ("error", "different", "same")
Leaves = list[Operand]


@dataclass(frozen=True)
class Batched:
    """``module``: its main takes batched arguments, and returns all leaves of the result in one
    tuple; ``batched``: which of these are batched. ``loops``: operators without a rule.
    """

    module: Module
    batched: tuple[bool, ...]
    loops: tuple[str, ...]
    random: bool


def batch(
    module: Module,
    batched: Sequence[bool],
    size: Any,
    *,
    randomness: str = "error",
    device: Device = CPU,
) -> Batched:
    """Return a program that does for ``size`` examples what main does for one.

    batched: which parameters of main, all of them tensors, have a first axis of examples; the
    others are the same for all. randomness: what a random draw is for the examples: "different",
    the "same", or an "error". device: where the program runs.

    Raises TraceError for a loop whose condition is batched, for a batched value that is written to
    an array, for references, for a data value that depends on the example by more than the tensors
    in it, and for random draws by "error".

    >>> from meta.ir import parse
    >>> print(batch(parse('''
    ... func @main(%x: float32[3], %w: float32[3]) -> float32[] {
    ...   %y: float32[3] = multiply(%x, %w)
    ...   %z: float32[] = sum(%y)
    ...   return %z
    ... }'''), [True, False], 8).module)
    func @main(%x: float32[8, 3], %w: float32[3]) -> (float32[8],) {
      %0: float32[8, 3] = multiply(%x, %w)
      %1: float32[8] = sum(%0, axis=(1,))
      return (%1,)
    }
    """
    module = lambda_lift(promote_refs(module))
    if calls_unknown(module):
        module = defunctionalize(module)
    found = _Batching(module, size, randomness, device)
    while True:
        found.changed = False
        main = found.main(tuple(batched))
        if not found.changed:
            break
    functions = {**module.functions, **dict(found.functions.values()), "main": main}
    result = remove_unreachable(Module(functions, found.types()))
    return Batched(result, found.of_main, tuple(dict.fromkeys(found.loops)), found.random)


def batched_type(type_: Type, batched: Sequence[bool], size: Any) -> Type:
    """Return a type in which these leaves are batched."""
    rest = iter(batched)

    def made(inner: Type) -> Type:
        if isinstance(inner, TupleType):
            return TupleType(tuple(map(made, inner.fields)))
        if next(rest):
            assert isinstance(inner, TensorType)
            return inner.with_shape((size, *inner.shape))
        return inner

    return made(type_)


Key = tuple[str, tuple[bool, ...]]


@dataclass
class _Batching:
    """What was written so far: functions by name and by which leaves of their arguments are
    batched, and which leaves of their results are, as far as that is known.
    """

    module: Module
    size: Any
    randomness: str
    device: Device
    functions: dict[tuple[str, tuple[bool, ...]], tuple[str, Function]] = field(
        default_factory=dict
    )
    results: dict[tuple[str, tuple[bool, ...]], tuple[bool, ...]] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)
    changed: bool = False
    random: bool = False
    of_main: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        self._names = Names(self.module.functions)
        self._called: dict[Key, str] = {}
        self._inside: list[str] = []
        self._held: set[str] = set()  # data types whose values hold what is batched

    def types(self) -> dict[str, TypeDefinition]:
        """Return the data types of the program."""
        found = dict(self.module.types)
        for name in self._held:
            constructors = tuple(
                ConstructorDefinition(c.name, tuple(map(self._field_type, c.fields)))
                for c in found[name].constructors
            )
            found[name] = TypeDefinition(name, constructors)
        return found

    def _field_type(self, field: Type) -> Type:
        """Return the type of a field of what holds batched tensors."""
        return batched_type(
            field, [isinstance(t, TensorType) for t in leaf_types(field)], self.size
        )

    def main(self, batched: tuple[bool, ...]) -> Function:
        """Return main for batched parameters."""
        self.functions.clear()
        self.loops.clear()
        function, self.of_main = self._function("main", batched)
        return function

    def _function(self, name: str, batched: tuple[bool, ...]) -> tuple[Function, tuple[bool, ...]]:
        """Return a function for batched leaves of its parameters, and which leaves of its result,
        now in one tuple, are batched.
        """
        function, trace = self.module.functions[name], Trace(self.device)
        env: dict[Var, Leaves] = {}
        params, rest = [], iter(batched)
        for old in function.params:
            count = len(leaf_types(_known(old)))
            flags = [next(rest) for _ in range(count)]
            var, value = trace.parameter(batched_type(_known(old), flags, self.size), old.name)
            params.append(var)
            env[old] = [Operand(v, f) for v, f in zip(_flat(value), flags, strict=True)]
        self._inside.append(name)
        self._block(function.body, trace, env)
        self._inside.pop()
        found = self._leaves(function.body.result, trace, env)
        attrs, rule = dict(function.attrs), custom_rule(self.module, name)
        if rule is not None:
            if any(o.batched for o in found) and not any(batched):
                raise TraceError(
                    "a function with a derivative of its own draws a number for each example",
                    found=name,
                    hint="draw outside of it, and hand the numbers in",
                )
            if any(batched):
                found = trace.run(self._all_batched, found)
                attrs |= self._rule(rule, batched)
        body = trace.builder.finish(Tuple(tuple(o.value.atom for o in found)))
        made = Function(tuple(params), body, type_of(body.result), attrs)
        return made, tuple(o.batched for o in found)

    def _rule(self, rule: CustomRule, batched: tuple[bool, ...]) -> dict[str, Any]:
        """Return the rule, as attributes, of a function whose parameters are batched like this and
        whose results all are.
        """
        own, closed = batched[: rule.own], batched[rule.own : rule.own + rule.closed]
        floats = [
            flag
            for p, flag in zip(rule.function.params, own, strict=False)
            if carries_gradient(_known(p))
        ]
        attrs = dict[str, Any]()

        def write(
            attr: str, flags: Sequence[bool], change: Callable[[Leaves], Leaves]
        ) -> tuple[bool, ...]:
            old, trace = rule.function.attrs[attr].name, Trace(self.device)
            params, given = [], []
            for p, flag in zip(self.module.functions[old].params, flags, strict=True):
                var, value = trace.parameter(batched_type(_known(p), [flag], self.size), p.name)
                params.append(var)
                given.append([Operand(value, flag)])
            found = trace.run(lambda: change(self._apply(old, given, trace)))
            body = trace.builder.finish(Tuple(tuple(o.value.atom for o in found)))
            key = f"{rule.name} {attr}", tuple(flags)
            if key not in self._called:
                self._called[key] = self._names.unique(f"{old}_batch")
            made = with_fresh_vars(Function(tuple(params), body, type_of(body.result)))
            self.functions[key] = self._called[key], made
            attrs[attr] = GlobalVar(self._called[key], made.type)
            return tuple(o.batched for o in found)

        def of_shared(found: Leaves) -> Leaves:
            """Return gradients, those of what all examples share summed over these."""
            every = zip(self._all_batched(found), floats, strict=True)
            return [o if flag else Operand(op.sum(o.value, (0,)), False) for o, flag in every]

        def results(found: Leaves) -> Leaves:
            return [*self._all_batched(found[: rule.results]), *found[rule.results :]]

        if rule.jvp is not None:
            write(JVP, (*batched, *floats), self._all_batched)
        if rule.bwd is not None:
            kept = batched[rule.own + rule.closed + rule.results :]
            if rule.fwd is not None:
                kept = write(FWD, batched, results)[rule.results :]
            write(BWD, ((True,) * rule.floats + kept + closed), of_shared)
        return attrs

    def _all_batched(self, leaves: Leaves) -> Leaves:
        """Return leaves, those repeated for each example that are the same for all."""
        values = with_flags(leaves, [True] * len(leaves), self.size)
        return [Operand(v, True) for v in values]

    def _block(self, block: Block, trace: Trace, env: dict[Var, Leaves]) -> None:
        for binding in block.bindings:
            trace.site = partial(getattr, binding, "span")
            env[binding.var] = trace.run(self._value, binding, trace, env)

    def _value(self, binding: Binding, trace: Trace, env: dict[Var, Leaves]) -> Leaves:
        value = binding.value
        if isinstance(value, If):
            return self._conditional(value, binding, trace, env)
        called = called_op(value)
        if called is not None:
            assert isinstance(value, Call)
            return self._operator(called, value, binding, trace, env)
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            return self._call(value.callee.name, value, trace, env)
        if isinstance(value, Primitive) and value.name in ("construct", "get_field", "is_variant"):
            return self._data(value, binding, trace, env)
        if isinstance(value, Call) or value.opaque:
            raise TraceError(
                "a reference or a function that is a value is not batched",
                found=first_line(Block((binding,), binding.var), binding),
                hint="compute with tensors, tuples, conditionals and loops",
                span=binding.span,
            )
        return self._leaves(value, trace, env)

    def _data(
        self, value: Primitive, binding: Binding, trace: Trace, env: dict[Var, Leaves]
    ) -> Leaves:
        """Return a data value that is made, its field or whether a constructor made it."""
        given = [self._leaves(a, trace, env) for a in value.operands]
        type_ = _known(binding.var)
        if value.name == "construct":
            assert isinstance(type_, DataType)
            if any(o.batched for field in given for o in field) and type_.name not in self._held:
                self._held.add(type_.name)
                self.changed = True
            if type_.name in self._held:
                given = [
                    [Operand(v, False) for v in with_flags(field, _tensors(field), self.size)]
                    for field in given
                ]
        fields = zip(map(_known, value.operands), given, strict=True)
        atoms = tuple(_packed(t, field) for t, field in fields)
        if value.name != "get_field":
            made = Primitive(value.name, atoms, value.details, value.type)
            return [Operand(trace.emit(made, type_), False)]
        owner = _known(value.operands[0])
        held = isinstance(owner, DataType) and owner.name in self._held
        result = self._field_type(type_) if held else type_
        made = Primitive(value.name, atoms, value.details, value.type and result)
        leaves = _flat(trace.emit(made, result))
        return [Operand(v, held and isinstance(v.type, TensorType)) for v in leaves]

    def _leaves(self, atom: Any, trace: Trace, env: dict[Var, Leaves]) -> Leaves:
        """Return the tensors of which an atom consists."""
        if isinstance(atom, Var):
            return env[atom]
        if isinstance(atom, Tuple):
            return [o for f in atom.fields for o in self._leaves(f, trace, env)]
        if isinstance(atom, TupleGetItem):
            owner = _known(atom.value)
            assert isinstance(owner, TupleType)
            counts = [len(leaf_types(f)) for f in owner.fields]
            first = sum(counts[: atom.index])
            return self._leaves(atom.value, trace, env)[first : first + counts[atom.index]]
        return [Operand(v, False) for v in _flat(trace.unpack(atom, _known(atom)))]

    def _operator(
        self, called: Any, call: Call, binding: Binding, trace: Trace, env: dict[Var, Leaves]
    ) -> Leaves:
        def argument(value: Any) -> Any:
            if not isinstance(value, Expr):
                return value
            found = self._leaves(value, trace, env)
            return found[0] if isinstance(_known(value), TensorType) else tuple(found)

        args = dict(zip(called.schema.names, map(argument, call.args), strict=True))
        operands = [
            o for a in args.values() for o in (a if isinstance(a, tuple) else (a,))
            if isinstance(o, Operand)
        ]  # fmt: skip
        batched = any(o.batched for o in operands)
        types = tuple(leaf_types(_known(binding.var)))
        different = called.random and self.randomness == "different"
        site = Site(called, args, self.size, types, self.device, different)
        self.random |= called.random
        if called.random and self.randomness == "error":
            raise TraceError(
                "random numbers are drawn for each example of a batch",
                op=called.name,
                hint='say randomness="different" or "same"; or draw outside, and hand them in',
                span=binding.span,
            )
        if not batched and not different:
            return self._as_before(site)
        if called.schema.written:
            raise TraceError(
                "an operator that writes to an array is given batched values",
                op=called.name,
                hint="let the function return the new value; a norm that keeps statistics of "
                "batches runs in evaluation mode (model.eval())",
                span=binding.span,
            )
        found = batched_call(site)
        if found is None and called.random and not different:
            raise TraceError(
                "it is not known how this operator is to draw the same for all examples",
                op=called.name,
                hint='randomness="different"; or draw outside, and hand the numbers in',
                span=binding.span,
            )
        if found is None:
            if type(self.size) is not int:
                raise TraceError(
                    "an operator without a rule for batches runs example by example, of which the "
                    "number must be known",
                    op=called.name,
                    span=binding.span,
                )
            self.loops.append(called.name)
            found = looped(site)
        return [Operand(y, True) for y in _flat(found)]

    def _as_before(self, site: Site) -> Leaves:
        """Return what a call gives that has nothing to do with the batch."""

        found = site.plain()
        return [Operand(y, False) for y in _flat(found)][: len(site.types)]

    def _call(self, name: str, call: Call, trace: Trace, env: dict[Var, Leaves]) -> Leaves:
        return self._apply(name, [self._leaves(a, trace, env) for a in call.args], trace)

    def _apply(self, name: str, given: list[Leaves], trace: Trace) -> Leaves:
        """Return what a function of the module gives for leaves of its arguments."""
        flags = tuple(o.batched for leaves in given for o in leaves)
        key = name, flags
        types = leaf_types(self._result(name))
        if key not in self.results:
            self.results[key] = (False,) * len(types)
            self._called[key] = self._names.unique(f"{name}_batch")
        if key not in self.functions:
            self.functions[key] = self._called[key], self.module.functions[name]
            function, found = self._function(name, flags)
            self.functions[key] = self._called[key], with_fresh_vars(function)
            if found != self.results[key]:
                self.results[key], self.changed = found, True
        batched = self.results[key]
        result = TupleType(
            tuple(batched_type(t, [f], self.size) for t, f in zip(types, batched, strict=True))
        )
        args = [
            _packed(_known(p), leaves)
            for p, leaves in zip(self.module.functions[name].params, given, strict=True)
        ]
        callee = GlobalVar(self._called[key], FuncType(tuple(map(_known, args)), result))
        made = trace.emit(Call(callee, tuple(args)), result)
        return [Operand(v, f) for v, f in zip(made, batched, strict=True)]

    def _result(self, name: str) -> Type:
        function = self.module.functions[name]
        return function.result_type or _known(function.body.result)

    def _conditional(
        self, value: If, binding: Binding, trace: Trace, env: dict[Var, Leaves]
    ) -> Leaves:
        (condition,) = self._leaves(value.condition, trace, env)
        blocks = value.then_block, value.else_block
        if condition.batched:
            require_selectable(self.module, blocks, binding, set(self._inside))
            yields = []
            for block in blocks:
                inner = dict(env)
                self._block(block, trace, inner)
                yields.append(self._leaves(block.result, trace, inner))
            trace.site = lambda: binding.span
            return [selected(condition, a, b, self.size) for a, b in zip(*yields, strict=True)]
        written, found = [], []
        for block in blocks:
            inner_trace, inner = BlockTrace(trace), dict(env)
            self._block(block, inner_trace, inner)
            written.append(inner_trace)
            found.append(inner_trace.run(self._leaves, block.result, inner_trace, inner))
        flags = [a.batched or b.batched for a, b in zip(*found, strict=True)]
        bodies = []
        for inner_trace, leaves in zip(written, found, strict=True):
            same = inner_trace.run(with_flags, leaves, flags, self.size)
            bodies.append(inner_trace.builder.finish(Tuple(tuple(o.atom for o in same))))
        types = leaf_types(_known(binding.var))
        result = TupleType(
            tuple(batched_type(t, [f], self.size) for t, f in zip(types, flags, strict=True))
        )
        made = trace.emit(If(condition.value.atom, *bodies), result)
        return [Operand(v, f) for v, f in zip(made, flags, strict=True)]


def _known(expr: Expr) -> Type:
    type_ = type_of(expr)
    assert type_ is not None
    return type_


def _flat(values: Any) -> list[Any]:
    return [v for part in values for v in _flat(part)] if isinstance(values, tuple) else [values]


def _tensors(leaves: Leaves) -> list[bool]:
    return [isinstance(o.value.type, TensorType) for o in leaves]


def _packed(type_: Type, leaves: Leaves) -> Expr:
    """Return the atom of a type, of its leaves."""
    rest = iter(leaves)

    def made(inner: Type) -> Expr:
        if isinstance(inner, TupleType):
            return Tuple(tuple(map(made, inner.fields)))
        atom: Expr = next(rest).value.atom
        return atom

    return made(type_)
