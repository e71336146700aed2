"""Reverse-mode automatic differentiation of a function's straight-line body.

The gradient rules are the same Python functions that the eager tape calls; here they run on symbols
and so append their operators to the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from meta.base.dtype import is_float
from meta.base.errors import GradientError, MetaError
from meta.base.registry import OPERATORS
from meta.grad.core import Rule, rule_of
from meta.ir import (
    Binding,
    Call,
    Expr,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    free_vars,
    operands,
    type_of,
)
from meta.ir.visit import inner_blocks
from meta.op.core import Op
from meta.op.core.tracing import Symbol, Trace
from meta.passes.call_of import base_op


def autodiff(module: Module, *, wrt: Sequence[int]) -> Module:
    """Make main return its result and its gradients.

    The new main takes ``(dy, *params)`` and returns ``(y, (gradients...))``, one gradient per index
    in ``wrt``, of the parameter's type. If the result is a tuple there is one ``dy`` per floating
    point field, nested tuples flattened. A parameter that does not influence the result gets zeros.

    Raises GradientError for control flow and for a result that is not computed from ``wrt`` by
    differentiable operators.

    >>> from meta.ir import parse
    >>> print(autodiff(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = relu(%x)
    ...   return %y
    ... }'''), wrt=[0]))
    func @main(%dy: float32[2], %x: float32[2]) -> (float32[2], (float32[2],)) {
      %y: float32[2] = relu(%x)
      %0: float32[2] = relu_dx(x=None, y=%y, dy=%dy)
      return (%y, (%0,))
    }
    """
    main = module.main
    return Module({**module.functions, "main": _Reverse(main, wrt).function()})


class _Reverse:
    def __init__(self, main: Function, wrt: Sequence[int]) -> None:
        self.main = main
        self.wrt = [main.params[i] for i in wrt]
        self.trace = Trace()
        # Variables whose value depends differentiably on a parameter in `wrt`.
        self.active: set[Expr] = set(self.wrt)
        # Gradient so far: a symbol, or for a tuple-typed variable a list with one entry per field.
        self.adjoint: dict[Expr, Any] = {}

    def function(self) -> Function:
        for binding in self.main.body.bindings:
            self.trace.builder.append(binding)
            if self.depends(binding):
                self.active.add(binding.var)
        dys = self.seed(self.main.body.result)
        for binding in reversed(self.main.body.bindings):
            adjoint = self.adjoint.pop(binding.var, None)
            if adjoint is not None:
                self.trace.site = partial(getattr, binding, "span")
                self.trace.run(self.back, binding, adjoint)
        self.trace.site = lambda: None
        gradients = self.trace.run(lambda: tuple(self.gradient_of(p) for p in self.wrt))
        result = Tuple((self.main.body.result, self.trace.atom(gradients)))
        body = self.trace.builder.finish(result)
        return Function((*dys, *self.main.params), body, type_of(result), dict(self.main.attrs))

    def depends(self, binding: Binding) -> bool:
        """Whether a gradient can flow through a binding; GradientError where it would have to and
        cannot.
        """
        value = binding.value
        used = [*operands(value), *(v for block in inner_blocks(value) for v in free_vars(block))]
        if not any(a in self.active for a in used) or not _has_float(binding.var.type):
            return False
        if isinstance(value, Tuple | TupleGetItem | Var):
            return True
        op = base_op(value.callee) if isinstance(value, Call) else None
        if op is None:
            raise GradientError(
                "a gradient through control flow and function calls is not available here",
                found=f"{type(value).__name__} bound to %{binding.var.name}",
                hint="write it without control flow and closures, or inline the functions",
                span=binding.span,
            )
        return rule_of(op).function is not None

    def seed(self, result: Expr) -> list[Var]:
        """Create a ``dy`` parameter per floating point leaf of the result."""
        leaves = [a for a in _leaves(result) if is_float(_tensor_type(a).dtype)]
        if not any(a in self.active for a in leaves):
            raise GradientError(
                "the result does not depend on anything that requires a gradient",
                hint="check requires_grad of the parameters, and what leads to the result",
            )
        dys = []
        for i, leaf in enumerate(leaves):
            var, symbol = self.trace.parameter(
                _tensor_type(leaf), "dy" if len(leaves) == 1 else f"dy{i}"
            )
            dys.append(var)
            self.trace.run(self.accumulate, leaf, symbol)
        return dys

    def back(self, binding: Binding, adjoint: Any) -> None:
        """Propagate the gradient of one binding's variable to the operands of its value."""
        value = binding.value
        if isinstance(value, Var):
            self.accumulate(value, adjoint)
        elif isinstance(value, Tuple):
            for field, gradient in zip(value.fields, adjoint, strict=True):
                if gradient is not None:
                    self.accumulate(field, gradient)
        elif isinstance(value, TupleGetItem):
            self.accumulate_field(value, adjoint)
        elif isinstance(value, Call):
            op = base_op(value.callee)
            assert op is not None
            self.back_call(op, value, binding, adjoint)

    def back_call(self, op: Op, call: Call, binding: Binding, adjoint: Any) -> None:
        rule = rule_of(op)
        y = self.value(binding.var)
        if isinstance(adjoint, list):
            like = OPERATORS["zeros_like"]
            adjoint = tuple(
                like(field) if g is None else g for g, field in zip(adjoint, y, strict=True)
            )
        try:
            gradients = rule(self.saved(rule, call, y, adjoint))
        except MetaError as error:
            error.note(f"in the gradient of {op.name}, called at {binding.span}")
            raise
        for i, gradient in zip(op.schema.tensor_slots, gradients, strict=True):
            argument = call.args[i]
            pairs = [(argument, gradient)]
            if isinstance(argument, Tuple):
                none = (None,) * len(argument.fields)
                pairs = list(zip(argument.fields, gradient or none, strict=True))
            for atom, g in pairs:
                if atom not in self.active:
                    continue
                if g is None:
                    raise GradientError(
                        f"there is no gradient for argument {op.schema.names[i]!r}",
                        op=op.name,
                        span=binding.span,
                    )
                self.accumulate(atom, g)

    def saved(self, rule: Rule, call: Call, y: Any, dy: Any) -> dict[str, Any]:
        values: dict[str, Any] = {rule.dy: dy}
        for name, index, type_only in rule.kept:
            value = y if index < 0 else self.value(call.args[index])
            values[name] = _types(value) if type_only else value
        return values

    def value(self, argument: Any) -> Any:
        """Return what an argument looks like to a rule: a symbol, a tuple of symbols or a
        literal.
        """
        if isinstance(argument, Tuple):
            return tuple(self.value(f) for f in argument.fields)
        if not isinstance(argument, Expr):
            return argument
        type_ = type_of(argument)
        if isinstance(type_, TensorType):
            return Symbol(self.trace, argument, type_)
        return self.trace.unpack(argument, type_) if type_ is not None else argument

    def accumulate(self, atom: Expr, gradient: Symbol | tuple[Any, ...] | list[Any]) -> None:
        if isinstance(atom, Tuple):
            for field, g in zip(atom.fields, gradient, strict=True):
                if g is not None:
                    self.accumulate(field, g)
        elif isinstance(gradient, list | tuple):
            for i, g in enumerate(gradient):
                if g is not None:
                    self.accumulate_field(TupleGetItem(atom, i), g)
        elif atom in self.active:
            old = self.adjoint.get(atom)
            self.adjoint[atom] = gradient if old is None else OPERATORS["add"](old, gradient)

    def accumulate_field(self, item: TupleGetItem, gradient: Any) -> None:
        owner = item.value
        if isinstance(owner, Tuple):
            self.accumulate(owner.fields[item.index], gradient)
        elif owner in self.active:
            count = len(type_of(owner).fields)  # type: ignore[union-attr]
            fields = self.adjoint.setdefault(owner, [None] * count)
            old = fields[item.index]
            fields[item.index] = gradient if old is None else OPERATORS["add"](old, gradient)

    def gradient_of(self, param: Var) -> Symbol:
        found: Symbol | None = self.adjoint.get(param)
        return OPERATORS["zeros_like"](self.value(param)) if found is None else found


def _leaves(atom: Expr) -> list[Expr]:
    if isinstance(atom, Tuple):
        return [leaf for f in atom.fields for leaf in _leaves(f)]
    return [atom]


def _tensor_type(atom: Expr) -> TensorType:
    type_ = type_of(atom)
    if not isinstance(type_, TensorType):
        raise GradientError(
            "the result must be a tensor or a (nested) tuple of tensors", found=type_
        )
    return type_


def _has_float(type_: Type | None) -> bool:
    if isinstance(type_, TupleType):
        return any(_has_float(f) for f in type_.fields)
    return not isinstance(type_, TensorType) or is_float(type_.dtype)


def _types(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_types(v) for v in value)
    return value.type if isinstance(value, Symbol) else value
