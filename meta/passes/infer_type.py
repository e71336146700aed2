"""Type inference: every variable and every result gets the type that follows from the
parameters.
"""

from __future__ import annotations

from dataclasses import replace

from meta.base.errors import IRError, MetaError
from meta.ir import Binding, Call, Expr, Module, Type, Var, type_of
from meta.op.core import Op
from meta.passes.call_of import base_op, typed_args
from meta.passes.rewrite import rewrite_function


def infer_type(module: Module) -> Module:
    """Give every variable the type that its operator's type function infers.

    Raises IRError for a parameter without a type, and TypeInferError, at the user's line, where a
    type function refuses.

    >>> from meta.ir import parse
    >>> print(infer_type(parse('''
    ... func @main(%x: float32[2, 3]) -> float32[2, 3] {
    ...   %y = relu(%x)
    ...   return %y
    ... }''')))
    func @main(%x: float32[2, 3]) -> float32[2, 3] {
      %y: float32[2, 3] = relu(%x)
      return %y
    }
    """
    functions = {}
    for name, function in module.functions.items():
        untyped = [p.name for p in function.params if p.type is None]
        if untyped:
            raise IRError(f"parameter {untyped[0]!r} of @{name} has no type")
        new = rewrite_function(function, _typed)
        functions[name] = replace(new, result_type=type_of(new.body.result))
    return Module(functions)


def _typed(binding: Binding) -> Binding:
    type_ = value_type(binding.value, binding)
    if type_ is None or type_ == binding.var.type:
        return binding
    return Binding(Var(binding.var.name, type_), binding.value, binding.span)


def value_type(value: Expr, binding: Binding) -> Type | None:
    """Return the type of a binding's value."""
    if isinstance(value, Call):
        op = base_op(value.callee)
        if isinstance(op, Op):
            try:
                result = op.infer(typed_args(op, value))
            except MetaError as error:
                error.span = binding.span or error.span
                raise
            if not isinstance(result, Type):
                raise IRError(
                    "a value that is known while tracing is no part of a program",
                    op=op.name,
                    found=result,
                    span=binding.span,
                )
            return result
    return type_of(value)
