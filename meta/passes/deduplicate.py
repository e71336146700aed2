"""What is there twice: equal functions and constants (`deduplicate`), and values that are computed
twice (`eliminate_common_subexpressions`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from meta.dialect.core.ir_calls import called_op, is_pure
from meta.ir import (
    Binding,
    Block,
    Constant,
    Expr,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    structural_equal,
    structural_hash,
    with_operands,
)
from meta.ir.constants import INLINE_LIMIT, tensor_bytes
from meta.ir.fields import Atom
from meta.ir.visit import rename_globals, replace_atoms
from meta.op.core.call import cache_key
from meta.passes.alias_analysis import AliasSets, map_functions_with_aliases
from meta.passes.rewrite import with_inner_blocks, with_value


def deduplicate(module: Module) -> Module:
    """Keep one of several equal global functions, and one of several equal constants.

    Functions are equal if nothing but names differs, ``main`` aside; what calls the others calls
    the first. Constants are equal if all their bits are. That helps what compares by identity:
    `eliminate_common_subexpressions`, and the memory of a compiled program.

    >>> from meta.ir import parse
    >>> print(meta.passes.deduplicate(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %a: float32[2] = @f(%x)
    ...   %b: float32[2] = @g(%a)
    ...   return %b
    ... }
    ... func @f(%y: float32[2]) -> float32[2] {
    ...   %c: float32[2] = exp(%y)
    ...   return %c
    ... }
    ... func @g(%z: float32[2]) -> float32[2] {
    ...   %d: float32[2] = exp(%z)
    ...   return %d
    ... }''')))
    func @main(%x: float32[2]) -> float32[2] {
      %a: float32[2] = @f(%x)
      %b: float32[2] = @f(%a)
      return %b
    }
    <BLANKLINE>
    func @f(%y: float32[2]) -> float32[2] {
      %c: float32[2] = exp(%y)
      return %c
    }
    """
    first: dict[tuple[TensorType, bytes], Constant] = {}
    found: dict[Expr, Constant] = {}

    def only(atom: Expr) -> Expr:
        if isinstance(atom, Constant) and atom not in found:
            key = atom.type, hashlib.blake2b(tensor_bytes(atom.data)).digest()
            found[atom] = first.setdefault(key, atom)
        return found.get(atom, atom)

    functions = {name: replace_atoms(f, only) for name, f in module.functions.items()}
    # What calls functions that have become one may now be equal itself.
    while names := _duplicates(functions):
        functions = {
            name: rename_globals(f, names) for name, f in functions.items() if name not in names
        }
    return module.with_functions(functions)


def _duplicates(functions: dict[str, Function]) -> dict[str, str]:
    """Return the names of functions that equal an earlier one, and the name of that."""
    by_hash: dict[int, list[str]] = {}
    twins = {}
    for name, function in functions.items():
        if name == "main":
            continue
        # One that calls itself is compared as if both had one name.
        own = rename_globals(function, {name: "main"})
        alike = by_hash.setdefault(structural_hash(own), [])
        for earlier in alike:
            if structural_equal(rename_globals(functions[earlier], {earlier: "main"}), own):
                twins[name] = earlier
                break
        else:
            alike.append(name)
    return twins


def eliminate_common_subexpressions(module: Module) -> Module:
    """Replace a binding by an earlier one that has the same value.

    Two calls are the same if operator and arguments are. Random calls, calls of functions and calls
    that write stay, and so does a call of something that is written; and where both are results of
    the program, the caller gets two arrays.

    >>> from meta.ir import parse
    >>> print(meta.passes.eliminate_common_subexpressions(parse('''
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
    return map_functions_with_aliases(
        module, lambda f, b: replace(f, body=_block(f.body, b, {}, {}))
    )


def _block(
    block: Block, buffers: AliasSets, known: dict[Hashable, Var], mapping: dict[Var, Expr]
) -> Block:
    """Return a block that looks values up in ``known``; what it adds is for inner blocks only."""
    known, kept = dict(known), []
    for binding in block.bindings:
        binding = with_value(binding, with_operands(binding.value, mapping))
        binding = with_inner_blocks(binding, lambda b: _block(b, buffers, known, mapping))
        var, key = binding.var, _key(binding, buffers)
        earlier = var if key is None else known.setdefault(key, var)
        if earlier is not var and (
            buffers.replaceable(var, earlier) or buffers.move_out(var, earlier)
        ):
            mapping[var] = earlier
        else:
            kept.append(binding)
    return Block(tuple(kept), with_operands(block.result, mapping))


def _key(binding: Binding, buffers: AliasSets) -> Hashable | None:
    """Return what two bindings of one value have in common; None for one that stays."""
    value, spec = binding.value, binding.value.spec
    if spec.uses is None or spec.is_atom or value.stored or spec.blocks or not is_pure(binding):
        return None
    # A field is the same memory whatever was written to it meanwhile; what is computed is not.
    is_part = value.opaque or isinstance(value, TupleGetItem)
    if not is_part and any(buffers.of(atom) in buffers.written for atom in operands(value)):
        return None
    keys = list(map(_argument, spec.uses(value)))
    op = called_op(value)
    if op is not None and op.commutative:
        keys[1:3] = [frozenset(keys[1:3])]  # behind the callee
    fields = (part for part in spec.fields if not isinstance(part.field, Atom))
    return (type(value), *keys, *(str(getattr(value, part.name)) for part in fields))


def _argument(argument: Any) -> Hashable:
    if isinstance(argument, Tuple):
        return ("tuple", *map(_argument, argument.fields))
    if isinstance(argument, Constant) and argument.data.numel() <= INLINE_LIMIT:
        return ("constant", argument.type, bytes(tensor_bytes(argument.data)))
    return argument if isinstance(argument, Expr) else cache_key(argument)
