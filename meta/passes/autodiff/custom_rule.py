"""Functions with a derivative of their own, which `meta.custom_vjp` and `meta.custom_jvp` make.

Such a function has its rule in its attributes, so that it is kept in a program's text. The last
``closed_over`` of its parameters c are what it closes over, of which the rule knows nothing: to
differentiate by them is an error.

- ``attrs(fwd=@f_fwd, bwd=@f_bwd)``: ``f_fwd(x..., c...) -> (y..., kept...)`` is what a program
  computes that goes backwards, and ``f_bwd(dy..., kept..., c...) -> (dx...)`` what goes there, for
  floating point y and x.
- ``attrs(bwd=@f_bwd)``: ``f_of(x..., c..., y..., kept...) -> y`` is what stays of it then, so that
  the derivative of y is the rule's in derivatives of derivatives, too.
- ``attrs(bwd="why")``: there is no rule for this reason; to differentiate is an error.
- ``attrs(jvp=@f_jvp)``: ``f_jvp(x..., c..., dx...) -> (y..., dy...)`` goes forwards.

A rule of one direction is transposed for the other, for which it must be linear in what it takes.
The code of rules becomes a part of the code around; what is left of the functions is inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meta import op
from meta.base.dtype import has_gradient
from meta.base.errors import GradientError, IRError
from meta.base.source import Span
from meta.dialect.core.ir_calls import atom_type, leaf_types
from meta.ir import (
    BWD,
    CLOSED_OVER,
    FWD,
    JVP,
    Binding,
    Block,
    BlockBuilder,
    Call,
    Expr,
    Function,
    GlobalVar,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    bindings,
    operands,
    type_of,
    with_fresh_vars,
)
from meta.ir.names import Names
from meta.ir.visit import rename_globals, substitute, uses
from meta.passes.dead_code import dead_code
from meta.passes.inline import inline
from meta.passes.lambda_lift import lambda_lift
from meta.passes.simplify import simplify
from meta.passes.simplify.arithmetic import fill_of

_ROUNDS = 2
_flat = partial(inline, max_bindings=1 << 20, to_differentiate=True)


@dataclass(frozen=True)
class CustomRule:
    """The rule of a function: the ones that it names, None for what it lacks; ``own``: how many of
    its parameters it is differentiated by, ``closed``: what it closes over comes behind them.
    ``missing``: why there is none.
    """

    name: str
    function: Function
    fwd: Function | None
    bwd: Function | None
    jvp: Function | None
    own: int
    closed: int
    missing: str | None = None

    @property
    def results(self) -> int:
        """How many leaves the result has."""
        return len(leaf_types(_result_type(self.function)))

    @property
    def floats(self) -> int:
        """How many of these have a derivative."""
        return sum(map(_carries, leaf_types(_result_type(self.function))))

    def own_args(self, call: Call) -> tuple[Any, ...]:
        """Return the arguments that have a derivative."""
        return call.args[: self.own]

    def closed_args(self, call: Call) -> tuple[Any, ...]:
        """Return the arguments that the function closes over."""
        return call.args[self.own : self.own + self.closed]

    def kept_args(self, call: Call, results: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return what ``bwd`` takes behind gradients, of a call of what has no ``fwd``. What is
        kept of a result is that of ``results``, if given, whose derivative is the rule's.
        """
        first = self.own + self.closed
        last = first + self.results
        known = dict(zip(map(id, call.args[first:last]), results, strict=False))
        known |= {id(a): a for a in call.args[:first]}  # a result that is an argument is that
        kept = (known.get(id(a), a) for a in call.args[last:])
        return (*kept, *self.closed_args(call))


def custom_rule(module: Module, name: str) -> CustomRule | None:
    """Return the rule of a function of a module; None if it has none."""
    function = module.functions[name]
    if function.attrs.keys().isdisjoint((BWD, JVP)):
        return None
    fwd, bwd, jvp = (
        module.functions[at.name] if isinstance(at := function.attrs.get(key), GlobalVar) else None
        for key in (FWD, BWD, JVP)
    )
    closed = function.attrs.get(CLOSED_OVER, 0)
    own = len(function.params) - closed
    missing = function.attrs[BWD] if bwd is None and jvp is None else None
    rule = CustomRule(name, function, fwd, bwd, jvp, own, closed, missing)
    if fwd is not None or bwd is None:
        return rule
    kept = len(bwd.params) - rule.floats - closed
    return replace(rule, own=own - kept - rule.results)


def missing_error(rule: CustomRule, span: Span | None) -> GradientError:
    """Return the error for a derivative of a function whose rule is missing."""
    return GradientError(f"{rule.name} has no derivative", found=rule.missing, span=span)


def closed_over_error(rule: CustomRule, binding: Binding) -> GradientError:
    """Return the error for a derivative by what a function closes over."""
    return GradientError(
        f"{rule.name} would be differentiated by what it closes over, of which its rule knows "
        "nothing",
        hint="hand it in as an argument, or take meta.detach of it",
        span=binding.span,
    )


class ResidualCalls:
    """Functions that stand for results of a rule's ``fwd``, by the name of the rule's function.

    Attributes
    ----------
    functions: those that were made.
    """

    def __init__(self, taken: Names) -> None:
        self.functions: dict[str, Function] = {}
        self._taken = taken
        self._made: dict[str, str] = {}

    def call(self, builder: BlockBuilder, rule: CustomRule, call: Call) -> tuple[CustomRule, Call]:
        """Append what computes the result and what is kept; return the call that stands for the
        result then, and its rule. A call of such a function itself stays.
        """
        if rule.fwd is None:
            return rule, call
        found = inline_into(builder, rule.fwd, call.args)
        if rule.name not in self._made:
            name = self._made[rule.name] = self._taken.unique(f"{rule.name}_of")
            types = [p.type for p in rule.function.params] + list(map(atom_type, found))
            params = tuple(Var(f"x{i}", t) for i, t in enumerate(types))
            first = len(rule.function.params)
            ys = params[first : first + rule.results]
            result: Expr = ys[0]
            if isinstance(_result_type(rule.function), TupleType):
                result = Tuple(ys)
            attrs = {k: v for k, v in rule.function.attrs.items() if k != FWD}
            body = Block((), result)
            self.functions[name] = Function(params, body, rule.function.result_type, attrs)
        name = self._made[rule.name]
        made = self.functions[name]
        known = replace(rule, name=name, function=made, fwd=None)
        return known, Call(GlobalVar(name, made.type), (*call.args, *found))


def inline_into(builder: BlockBuilder, function: Function, args: Sequence[Any]) -> list[Expr]:
    """Append the body of a function of these arguments; return the atoms of its results."""
    copy = with_fresh_vars(function)
    for param, arg in zip(copy.params, args, strict=True):
        if param.type != atom_type(arg):
            raise IRError(
                "the rule of a function is of other types than its call",
                expected=param.type,
                found=atom_type(arg),
            )
    body = substitute(copy.body, dict(zip(copy.params, args, strict=True)))
    for binding in body.bindings:
        builder.append(binding)
    return fields_of(builder, body.result)


Differentiate = Callable[[Module, Sequence[int]], Module | None]
"""Returns main as ``(dys..., params...) -> (y, gradients)``; None if it does not depend on them."""


def with_transposed(
    module: Module, rules: Iterable[CustomRule], forward: bool, differentiate: Differentiate
) -> tuple[Module, dict[str, Function]]:
    """Return, by the names of functions, the rules of the other direction for those that have none,
    and the module with what these call.

    forward: which direction that is. ``(dx..., kept..., c..., y...) -> dy`` is made of ``bwd``, and
    ``(dy..., x..., c..., x...) -> dx`` of ``jvp``; the last are floating point values, of whose
    types what the rule is linear in is.
    """
    made: dict[str, Function] = {}
    for rule in rules:
        found = rule.bwd if forward else rule.jvp
        if found is None or (rule.jvp if forward else rule.bwd) is not None:
            continue
        count = len(found.params)
        if forward:
            linear, outputs = range(rule.floats), slice(None)
        else:
            linear = range(len(rule.function.params), count)
            outputs = slice(rule.results, None)
        module, made[rule.name] = transposed(
            module, rule.name, found, linear, outputs, differentiate
        )
    return module, made


def transposed(
    module: Module,
    name: str,
    function: Function,
    linear: range,
    outputs: slice,
    differentiate: Differentiate,
) -> tuple[Module, Function]:
    """Return a function ``(d_outputs..., other parameters..., like_linear...) -> d_linear`` of one
    that is linear in these parameters, and the module with what it calls; GradientError if it is
    not. name: of the function whose rule it is.
    """
    function, builder = with_fresh_vars(function), BlockBuilder()
    for binding in function.body.bindings:
        builder.append(binding)
    result = Tuple(tuple(fields_of(builder, function.body.result)[outputs]))
    main = Function(function.params, builder.finish(result), type_of(result))
    likes = tuple(Var(f"like_{function.params[i].name}", function.params[i].type) for i in linear)
    others = tuple(p for i, p in enumerate(function.params) if i not in linear)
    found = differentiate(module.with_functions({**module.functions, "main": main}), linear)
    builder = BlockBuilder()
    zeros = [builder.emit(Call(op.zeros_like, (v, None)), type=v.type) for v in likes]
    if found is None:
        dys = tuple(Var("dy", atom_type(a)) for a in result.fields)
        body = builder.finish(Tuple(tuple(zeros)))
        return module, Function((*dys, *others, *likes), body, type_of(body.result))
    back = found.main
    assert isinstance(back.body.result, Tuple)
    gradients = back.body.result.fields[1]
    left = Function(back.params, Block(back.body.bindings, gradients), type_of(gradients))
    found = found.with_functions({**found.functions, "main": left})
    for _ in range(_ROUNDS):  # closures are known where what returned them is a part of the code
        found = _flat(lambda_lift(_flat(found)))
    found = dead_code(simplify(found))
    taken = Names((*module.functions, "main"))
    names = {
        n: taken.unique(n)
        for n, new in found.functions.items()
        if n != "main" and module.functions.get(n) is not new
    }
    added = {names[n]: rename_globals(found.functions[n], names) for n in names}
    back = rename_globals(found.main, names)
    count = len(back.params) - len(function.params)
    inputs = [back.params[count + i] for i in linear]
    _require_linear(name, back, inputs)
    for binding in substitute(back.body, dict(zip(inputs, zeros, strict=True))).bindings:
        builder.append(binding)
    mapping = dict[Var, Expr](zip(inputs, zeros, strict=True))
    body = builder.finish(substitute(Block((), back.body.result), mapping).result)
    params = tuple(p for p in back.params if p not in inputs)
    made = Function((*params, *likes), body, type_of(body.result))
    return module.with_functions({**module.functions, **added}, found.types), made


def _require_linear(name: str, function: Function, inputs: Sequence[Var]) -> None:
    """Raise GradientError if the derivative of a rule by what it is to be linear in depends on the
    values of that.
    """
    depending = set[Expr](inputs)
    known: dict[Any, Expr] = {b.var: b.value for b in bindings(function)}
    for binding in bindings(function):
        if not depending.isdisjoint(uses(binding.value)) and fill_of(binding.var, known) is None:
            depending.add(binding.var)
    if not depending.isdisjoint(operands(function.body.result)):
        raise GradientError(
            f"the rule of {name} is not, or not seen to be, linear in the gradients or tangents "
            "that it is given, so it has no transpose, the derivative in the other direction",
            hint="of custom_vjp, take gradients of gradients (meta.grad.jacrev of jacrev); of "
            "custom_jvp, make it linear: a result's change is, in that of the arguments",
        )


def fields_of(builder: BlockBuilder, result: Expr) -> list[Expr]:
    """Return the atoms of the leaves of a result without nested tuples."""
    if isinstance(result, Tuple):
        return list(result.fields)
    type_ = type_of(result)
    if not isinstance(type_, TupleType):
        return [result]
    return [
        builder.emit(TupleGetItem(result, i), type=field) for i, field in enumerate(type_.fields)
    ]


def _carries(type_: Type) -> bool:
    return isinstance(type_, TensorType) and has_gradient(type_.dtype)


def _result_type(function: Function) -> Type:
    type_ = function.result_type or type_of(function.body.result)
    assert type_ is not None
    return type_
