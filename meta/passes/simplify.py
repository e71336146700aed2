"""Local simplification: what a call equals, by rules that hold for every value."""

from __future__ import annotations

from functools import partial

from meta.base.device import CPU
from meta.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Module,
    TensorType,
    TupleGetItem,
    Var,
)
from meta.op.core import View
from meta.passes.buffers import Buffers
from meta.passes.call_of import base_op, typed_args
from meta.passes.definitions import Definitions
from meta.passes.rewrite import rewrite_function
from meta.passes.rules import RULES, Site
from meta.passes.rules.pieces import field_of
from meta.passes.rules.table import op_call


def simplify(module: Module) -> Module:
    """Replace calls by what they equal: an argument, an earlier value, a cheaper call.

    The rules are in `meta/passes/rules`, by subject: identities of arithmetic, casts that lose
    nothing, chains of views, transpositions and broadcasts, split and concatenate, transposed
    operands of products, decided `where`; and fields of known tuples. They are exact, also for NaN,
    infinities and signed zeros. What is written or leaves the program stays an array of its own.

    >>> from meta.ir import parse
    >>> print(simplify(parse('''
    ... func @main(%x: float32[2, 3], %w: float32[2, 5]) -> float32[3, 5] {
    ...   %a: float32[6] = reshape(%x, shape=(6,))
    ...   %b: float32[2, 3] = reshape(%a, shape=(2, 3))
    ...   %c: float32[2, 3] = multiply(%b, 1.0)
    ...   %t: float32[3, 2] = transpose(%c)
    ...   %d: float32[3, 5] = matmul(%t, %w)
    ...   return %d
    ... }''')))
    func @main(%x: float32[2, 3], %w: float32[2, 5]) -> float32[3, 5] {
      %a: float32[6] = reshape(%x, shape=(6,))
      %t: float32[3, 2] = transpose(%x)
      %d: float32[3, 5] = matmul_tn(%x, %w)
      return %d
    }
    """
    functions = {}
    for name, function in module.functions.items():
        buffers = Buffers(function)
        known = Definitions(function, buffers)
        functions[name] = rewrite_function(function, partial(_step, buffers, known))
    return Module(functions)


def _step(buffers: Buffers, known: Definitions, binding: Binding) -> Binding | Expr:
    """Simplify one binding until nothing applies any more."""
    while True:
        result = _simplified(binding.value, binding, known)
        if result is None or not _may_be(result, binding, buffers):
            break
        if not isinstance(result, Call):
            return result
        binding = Binding(binding.var, result, binding.span)
    known.add(binding)
    return binding


def _simplified(value: Expr, binding: Binding, known: Definitions) -> Expr | None:
    """Return the atom or the call that a value equals, None if no rule applies."""
    if isinstance(value, Var | Constant):
        return value
    if isinstance(value, TupleGetItem):
        return field_of(value, known)
    type_ = binding.var.type
    made = op_call(value)
    if made is None or not isinstance(type_, TensorType):
        return None
    return RULES.apply(Site(made.name, made.args, type_, known))


def _may_be(result: Expr, binding: Binding, buffers: Buffers) -> bool:
    """Whether a value may share the memory that it would share as ``result``."""
    shared = _viewed(result) if isinstance(result, Call) else result
    fresh = isinstance(binding.value, Call) and _viewed(binding.value) is None
    return shared is None or not fresh or buffers.replaceable(binding.var, shared)


def _viewed(call: Call) -> Expr | None:
    """Return the atom whose buffer the result of a call shares, None if it has its own."""
    op = base_op(call.callee)
    if op is None or op.declare_site is None:
        return None
    out = op.call_values(typed_args(op, call), CPU).out
    return call.args[out.slot] if isinstance(out, View) else None
