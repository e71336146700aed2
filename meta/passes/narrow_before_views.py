"""Casts to fewer bits stand next to what computed the wide numbers, before views of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meta.base.dtype import bits
from meta.ir import Binding, Block, Expr, Function, If, Module, Var
from meta.passes.rules.shapes import VIEWS
from meta.passes.rules.table import call as operator_call
from meta.passes.rules.table import op_call, tensor_type


def narrow_before_views(module: Module) -> Module:
    """Exchange a reshape and the cast to fewer bits that follows it.

    A view ends a kernel: the cast then fuses with what is before it, which writes narrow numbers
    only, and the view, which costs nothing, is one of these.

    >>> from meta.ir import parse
    >>> print(narrow_before_views(parse('''
    ... func @main(%x: float32[2, 3, 4]) -> float16[6, 4] {
    ...   %p: float32[2, 3, 4] = softmax(%x)
    ...   %v: float32[6, 4] = reshape(%p, shape=(6, 4))
    ...   %y: float16[6, 4] = cast(%v, "float16")
    ...   return %y
    ... }''')))
    func @main(%x: float32[2, 3, 4]) -> float16[6, 4] {
      %p: float32[2, 3, 4] = softmax(%x)
      %v: float32[6, 4] = reshape(%p, shape=(6, 4))
      %narrow: float16[2, 3, 4] = cast(%p, dtype="float16")
      %y: float16[6, 4] = reshape(%narrow, shape=(6, 4))
      return %y
    }
    """
    functions = {n: _function(f) for n, f in module.functions.items()}
    return module.with_functions(functions)


def _function(function: Function) -> Function:
    return replace(function, body=_block(function.body, {}))


def _block(block: Block, outer: Mapping[Var, Expr]) -> Block:
    known, made = dict(outer), []
    for binding in block.bindings:
        value = binding.value
        if isinstance(value, If):
            blocks = (_block(b, known) for b in (value.then_block, value.else_block))
            binding = replace(binding, value=If(value.condition, *blocks))
        elif isinstance(value, Function):
            binding = replace(binding, value=_function(value))
        pair = _exchanged(binding, known)
        known[binding.var] = binding.value
        made += pair or [binding]
    return Block(tuple(made), block.result)


def _exchanged(binding: Binding, known: Mapping[Var, Expr]) -> list[Binding] | None:
    """Return a cast and the view of it; None for another binding."""
    cast, type_ = op_call(binding.value), tensor_type(binding.var)
    if cast is None or cast.name != "cast" or type_ is None or not type_.is_static:
        return None
    source = _behind_views(cast.args[0], known)
    before = tensor_type(source)
    if source is cast.args[0] or before is None or not before.is_static:
        return None
    if bits(before.dtype) <= bits(type_.dtype):
        return None
    narrow = Var("narrow", before.with_dtype(type_.dtype))
    first = Binding(narrow, operator_call("cast", source, type_.dtype), binding.span)
    view = operator_call("reshape", narrow, type_.static_shape)
    return [first, Binding(binding.var, view, binding.span)]


def _behind_views(atom: object, known: Mapping[Var, Expr]) -> object:
    while isinstance(atom, Var) and (made := op_call(known.get(atom))) is not None:
        if made.name not in VIEWS:
            break
        atom = made.args[0]
    return atom
