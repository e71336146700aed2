"""Common subexpression elimination: what is computed twice is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from meta.dialect.core.dispatch import cache_key
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    GetField,
    IsVariant,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    map_atoms,
    operands,
)
from meta.ir.constants import INLINE_LIMIT, tensor_bytes
from meta.passes.buffers import Buffers, Summaries
from meta.passes.calls import base_op, is_pure
from meta.passes.rewrite import each_function, with_inner_blocks, with_value


def eliminate_common_subexpressions(module: Module) -> Module:
    """Replace a binding by an earlier one that has the same value.

    Two calls are the same if operator and arguments are. Random calls, calls of functions and calls
    that write stay, and so does a call of something that is written; and where both are results of
    the program, the caller gets two arrays.

    >>> from meta.ir import parse
    >>> print(eliminate_common_subexpressions(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %a: float32[2] = exp(%x)
    ...   %b: float32[2] = exp(%x)
    ...   %c: float32[2] = multiply(%a, %b)
    ...   return %c
    ... }''')))
    func @main(%x: float32[2]) -> float32[2] {
      %a: float32[2] = exp(%x)
      %c: float32[2] = multiply(%a, %a)
      return %c
    }
    """
    summaries = Summaries(module)
    return each_function(
        module, lambda f: replace(f, body=_block(f.body, Buffers(f, summaries), {}, {}))
    )


def _block(
    block: Block, buffers: Buffers, known: dict[Hashable, Var], mapping: dict[Var, Expr]
) -> Block:
    """Return a block that looks values up in ``known``; what it adds is for inner blocks only."""
    known = dict(known)
    kept = []

    def leaf(atom: Expr) -> Expr:
        return mapping.get(atom, atom) if isinstance(atom, Var) else atom

    for binding in block.bindings:
        binding = with_value(binding, map_atoms(binding.value, leaf))
        binding = with_inner_blocks(binding, lambda b: _block(b, buffers, known, mapping))
        key = _key(binding, buffers)
        earlier = None if key is None else known.setdefault(key, binding.var)
        if (
            earlier is None
            or earlier is binding.var
            or not buffers.replaceable(binding.var, earlier)
        ):
            kept.append(binding)
        else:
            mapping[binding.var] = earlier
    return Block(tuple(kept), map_atoms(block.result, leaf))


def _key(binding: Binding, buffers: Buffers) -> Hashable | None:
    """Return what two bindings of one value have in common; None for one that stays."""
    value = binding.value
    if isinstance(value, TupleGetItem):
        return ("field", value.value, value.index)
    if isinstance(value, GetField):
        return ("field", value.value, value.constructor, value.index)
    if isinstance(value, IsVariant):
        return ("variant", value.value, value.constructor)
    op = base_op(value.callee) if isinstance(value, Call) else None
    if op is None or not is_pure(binding):
        return None
    assert isinstance(value, Call)
    if any(buffers.of(atom) in buffers.written for atom in operands(value)):
        return None
    keys = list(map(_argument, value.args))
    if op.commutative:
        keys[:2] = [frozenset(keys[:2])]
    return (value.callee, *keys)


def _argument(argument: Any) -> Hashable:
    if isinstance(argument, Tuple):
        return ("tuple", *map(_argument, argument.fields))
    if isinstance(argument, Constant) and argument.data.numel() <= INLINE_LIMIT:
        return ("constant", argument.type, bytes(tensor_bytes(argument.data)))
    return argument if isinstance(argument, Expr) else cache_key(argument)
