"""Casts to fewer bits stand next to what computed the wide numbers, before views of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from meta import op
from meta.base.dtype import bits
from meta.ir import Binding, Expr, Module, Var
from meta.passes.calls import new_call, op_call, tensor_type
from meta.passes.rewrite import rewrite
from meta.passes.rules.shapes import VIEWS


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
    return rewrite(module, partial(_exchanged, known={}))


def _exchanged(binding: Binding, known: dict[Var, Expr]) -> list[Binding]:
    """Return a cast and the view of it; another binding as it is."""
    known[binding.var] = binding.value
    cast, type_ = op_call(binding.value), tensor_type(binding.var)
    if cast is None or cast.op is not op.cast or type_ is None or not type_.is_static:
        return [binding]
    source = _behind_views(cast.args[0], known)
    before = tensor_type(source)
    if source is cast.args[0] or before is None or not before.is_static:
        return [binding]
    if bits(before.dtype) <= bits(type_.dtype):
        return [binding]
    narrow = Var("narrow", before.with_dtype(type_.dtype))
    first = Binding(narrow, new_call(op.cast, source, type_.dtype), binding.span)
    view = new_call(op.reshape, narrow, type_.static_shape)
    return [first, Binding(binding.var, view, binding.span)]


def _behind_views(atom: object, known: Mapping[Var, Expr]) -> object:
    while isinstance(atom, Var) and (made := op_call(known.get(atom))) is not None:
        if made.op not in VIEWS:
            break
        atom = made.args[0]
    return atom
