"""Type inference: every variable and every result gets the type that follows from the
parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meta.base.errors import IRError, MetaError, TypeInferError
from meta.dialect.core.ir_calls import arg_types, atom_type, called_op
from meta.ir import (
    Binding,
    Call,
    Effect,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    Module,
    TupleType,
    Type,
    Var,
    compatible,
    type_of,
)
from meta.ir.printer import global_text
from meta.ir.types import call_type, with_declared_names
from meta.passes.call_graph import callees_first
from meta.passes.rewrite import rewrite_function


def infer_type(module: Module) -> Module:
    """Give every variable the type that its operator's type function infers.

    A function that calls itself keeps its declared result type, a reference the declared type of
    what it may hold, and the result of a call of a function the declared names of extents that do
    not follow from its arguments. Raises IRError for a parameter
    without a type and for a recursive function without a result type or with another one than it
    has, and TypeInferError, at the user's line, where a type function refuses.

    >>> from meta.ir import parse
    >>> print(meta.passes.infer_type(parse('''
    ... func @main(%x: float32[2, 3]) -> float32[2, 3] {
    ...   %y = relu(%x)
    ...   return %y
    ... }''')))
    func @main(%x: float32[2, 3]) -> float32[2, 3] {
      %y: float32[2, 3] = relu(%x)
      return %y
    }
    """
    for name, function in module.functions.items():
        _require_typed(function, global_text(name))
    # Callees come first, so that a call gets its function's new result type. In a recursion nobody
    # is first: there the declared type holds, and must fit what follows from it.
    functions = dict(module.functions)
    awaited: set[str] = set()
    inferred: set[str] = set()

    def result_type(name: str) -> Type:
        if name not in inferred:
            awaited.add(name)
        declared = functions[name].result_type
        if declared is None:
            raise IRError(
                f"the result type of {global_text(name)} is not known where it is called",
                hint="a function that calls itself needs a declared result type",
            )
        return declared

    for name in callees_first(module):
        new = rewrite_function(functions[name], lambda b: _infer_binding(b, functions, result_type))
        type_ = type_of(new.body.result)
        if name in awaited:
            if not compatible(type_, new.result_type):
                raise IRError(
                    f"the recursive function {global_text(name)} does not have its result type",
                    expected=new.result_type,
                    found=type_,
                )
            type_ = new.result_type
        functions[name] = replace(new, result_type=type_)
        inferred.add(name)
    return module.with_functions(functions)


def _require_typed(function: Function, name: str) -> None:
    untyped = [p.name for p in function.params if p.type is None]
    if untyped:
        raise IRError(f"parameter {untyped[0]!r} of {name} has no type")


def _infer_binding(
    binding: Binding, functions: dict[str, Function], result_type: Callable[[str], Type]
) -> Binding:
    value = binding.value
    if isinstance(value, Function):
        _require_typed(value, f"the closure %{binding.var.name}")
        value = replace(value, result_type=type_of(value.body.result) or value.result_type)
        binding = Binding(binding.var, value, binding.span)
    if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
        params = tuple(p.type for p in functions[value.callee.name].params if p.type is not None)
        function_type = FuncType(params, result_type(value.callee.name))
        found = call_type(function_type, [atom_type(a) for a in value.args])
        # Its function does not know the names of extents that no argument tells it.
        type_: Type | None = with_declared_names(found, binding.var.type)
    else:
        type_ = value_type(value, binding)
    if type_ is None or type_ == binding.var.type:
        return binding
    if value.effect is Effect.NEW and binding.var.type is not None:
        # What it holds first may be of a narrower type than what is written to it later.
        return binding
    return Binding(Var(binding.var.name, type_), value, binding.span)


def value_type(value: Expr, binding: Binding) -> Type | None:
    """Return the type of a binding's value."""
    op = called_op(value)
    if op is None:
        return type_of(value)
    assert isinstance(value, Call)
    try:
        types = arg_types(op, value)
        for slot, given in zip(op.schema.slots, types, strict=False):
            if not slot.fits_type(given):
                raise TypeInferError(
                    f"{slot.name} is of another kind",
                    op=op.name,
                    expected=slot.accepts,
                    found=TupleType(given) if isinstance(given, tuple) else given,
                )
        result = op.infer(types)
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
