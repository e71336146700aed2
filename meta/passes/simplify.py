"""Local simplification: identities that hold for every floating point value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meta.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    type_of,
)
from meta.op.core import Op
from meta.passes.buffers import Buffers
from meta.passes.rewrite import rewrite_function

# By operator: the atom that a call equals, or None. Only what is exact for NaN, infinities and
# signed zeros.
Rule = Callable[[Call, TensorType, "dict[Var, Expr]"], Expr | None]


def simplify(module: Module) -> Module:
    """Replace calls that return one of their arguments, chains of views and casts, and fields of
    known tuples.

    >>> from meta.ir import parse
    >>> print(simplify(parse('''
    ... func @main(%x: float32[2, 3]) -> float32[6] {
    ...   %a: float32[3, 2] = reshape(%x, shape=(3, 2))
    ...   %b: float32[6] = reshape(%a, shape=(6,))
    ...   %c: float32[6] = multiply(%b, 1.0)
    ...   %d: float32[6] = relu(%c)
    ...   return %d
    ... }''')))
    func @main(%x: float32[2, 3]) -> float32[6] {
      %a: float32[3, 2] = reshape(%x, shape=(3, 2))
      %b: float32[6] = reshape(%x, shape=(6,))
      %d: float32[6] = relu(%b)
      return %d
    }
    """
    functions = {}
    for name, function in module.functions.items():
        functions[name] = rewrite_function(function, partial(_step, Buffers(function), {}))
    return Module(functions)


def _step(buffers: Buffers, values: dict[Var, Expr], binding: Binding) -> Binding | Expr:
    result = _simplify(binding, values)
    if isinstance(result, Expr):
        computed = isinstance(binding.value, Call) and not _is_view(binding.value)
        if not computed or buffers.replaceable(binding.var, result):
            return result
        result = binding
    values[result.var] = result.value
    return result


def _simplify(binding: Binding, values: dict[Var, Expr]) -> Binding | Expr:
    value, type_ = binding.value, binding.var.type
    if isinstance(value, Var | Constant):
        return value
    if isinstance(value, TupleGetItem):
        owner = values.get(value.value) if isinstance(value.value, Var) else value.value
        return owner.fields[value.index] if isinstance(owner, Tuple) else binding
    if isinstance(value, Call) and isinstance(value.callee, Op) and isinstance(type_, TensorType):
        rule = _RULES.get(value.callee.name)
        result = rule(value, type_, values) if rule is not None else None
        if isinstance(result, Call):
            return Binding(binding.var, result, binding.span)
        return binding if result is None else result
    return binding


def _same(atom: object, type_: TensorType) -> Expr | None:
    return atom if isinstance(atom, Expr) and type_of(atom) == type_ else None


def _neutral(value: int, sides: tuple[int, ...]) -> Rule:
    def rule(call: Call, type_: TensorType, values: dict[Var, Expr]) -> Expr | None:
        if any(a is not None for a in call.args[2:]):
            return None
        for side in sides:
            other = call.args[side]
            # By text, for -0.0 equals 0.0 and x - -0.0 is x + 0.
            if not isinstance(other, bool | Expr) and str(other) in (str(value), f"{value}.0"):
                return _same(call.args[1 - side], type_)
        return None

    return rule


def _identity_if_same_type(call: Call, type_: TensorType, values: dict[Var, Expr]) -> Expr | None:
    return _same(call.args[0], type_)


def _reshape(call: Call, type_: TensorType, values: dict[Var, Expr]) -> Expr | None:
    """reshape(reshape(x)) is reshape(x): only the last shape counts, once it is written out."""
    source = call.args[0]
    while _same(source, type_) is None and isinstance(source, Var) and _is_view(values.get(source)):
        source = values[source].args[0]  # type: ignore[attr-defined]
    if _same(source, type_) is not None:
        return source  # type: ignore[no-any-return]
    if source is call.args[0] or not type_.is_static:
        return None
    return Call(call.callee, (source, type_.static_shape, False))


def _is_view(value: Expr | None) -> bool:
    return isinstance(value, Call) and isinstance(value.callee, Op) and value.callee.name in _VIEWS


def _transpose(call: Call, type_: TensorType, values: dict[Var, Expr]) -> Expr | None:
    source = call.args[0]
    axes = _axes(call)
    if axes == tuple(range(type_.ndim)):
        return _same(source, type_)
    inner = values.get(source) if isinstance(source, Var) else None
    if isinstance(inner, Call) and inner.callee is call.callee:
        first = _axes(inner)
        if tuple(first[a] for a in axes) == tuple(range(type_.ndim)):
            return _same(inner.args[0], type_)
    return None


def _axes(call: Call) -> tuple[int, ...]:
    source = type_of(call.args[0])
    ndim = source.ndim if isinstance(source, TensorType) else 0
    axes = call.args[1]
    return tuple(reversed(range(ndim))) if not axes else tuple(a % ndim for a in axes)


_VIEWS = ("reshape", "batch_flatten", "expand_dims", "squeeze")
# x + 0 is no identity for x = -0.0, x - 0, x * 1 and x / 1 are.
_RULES: dict[str, Rule] = {
    "subtract": _neutral(0, (1,)),
    "multiply": _neutral(1, (0, 1)),
    "divide": _neutral(1, (1,)),
    "cast": _identity_if_same_type,
    "broadcast_to": _identity_if_same_type,
    "reshape": _reshape,
    "batch_flatten": _identity_if_same_type,
    "squeeze": _identity_if_same_type,
    "transpose": _transpose,
}
