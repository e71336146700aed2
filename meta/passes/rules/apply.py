"""Applying a table of rules to a program."""

from __future__ import annotations

from functools import partial

from meta.base.device import CPU
from meta.ir import Binding, Call, Constant, Expr, Module, TensorType, TupleGetItem, Var
from meta.op.core import View
from meta.passes.buffers import Buffers, Definitions, Summaries
from meta.passes.calls import base_op, op_call, typed_args
from meta.passes.rewrite import rewrite_function
from meta.passes.rules.pieces import field_of, whole
from meta.passes.rules.table import Rules, Site


def apply(rules: Rules, module: Module) -> Module:
    """Return the module with every binding rewritten until no rule applies to it any more.

    Fields of known tuples become what they are, and a result that is put together of the fields of
    one call or `If` becomes that: the call is then in tail position. What is written or leaves the
    program stays an array of its own.
    """
    functions, summaries = {}, Summaries(module)
    for name, function in module.functions.items():
        buffers = Buffers(function, summaries)
        known = Definitions(function, buffers)
        step, result = partial(_step, rules, buffers, known), partial(whole, known=known)
        functions[name] = rewrite_function(function, step, result=result)
    return module.with_functions(functions)


def _step(rules: Rules, buffers: Buffers, known: Definitions, binding: Binding) -> Binding | Expr:
    while True:
        result = _rewritten(rules, binding, known)
        if result is None or not _may_be(result, binding, buffers):
            break
        if not isinstance(result, Call):
            return result
        binding = Binding(binding.var, result, binding.span)
    known.add(binding)
    return binding


def _rewritten(rules: Rules, binding: Binding, known: Definitions) -> Expr | None:
    """Return the atom or the call that a value equals, None if no rule applies."""
    value, type_ = binding.value, binding.var.type
    if isinstance(value, Var | Constant):
        return value
    if isinstance(value, TupleGetItem):
        return field_of(value, known)
    made = op_call(value)
    if made is None or not isinstance(type_, TensorType):
        return None
    return rules.apply(Site(made.op, made.args, type_, known))


def _may_be(result: Expr, binding: Binding, buffers: Buffers) -> bool:
    """Whether a value may share the memory that it would share as ``result``."""
    shared = _viewed(result) if isinstance(result, Call) else result
    if shared is None or buffers.of(shared) is buffers.of(binding.var):
        return True
    return buffers.replaceable(binding.var, shared)


def _viewed(call: Call) -> Expr | None:
    """Return the atom whose buffer the result of a call shares, None if it has its own."""
    op = base_op(call.callee)
    if op is None or op.declare_site is None:
        return None
    out = op.call_values(typed_args(op, call), CPU).out
    return call.args[out.slot] if isinstance(out, View) else None
