"""Functions that ask a data value which constructor made it, and do something else for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meta.ir import (
    Block,
    BlockBuilder,
    Call,
    Function,
    GlobalVar,
    If,
    Primitive,
    Type,
    Var,
)
from meta.ir.names import Names

MOST = 16
"""Constructors that one function asks for, since blocks must not nest deep."""


def by_constructor(
    name: str,
    names: Names,
    params: Sequence[tuple[str, Type]],
    result: Type,
    constructors: Sequence[str],
    block: Callable[[str, tuple[Var, ...]], Block],
) -> dict[str, Function]:
    """Return the function ``name``, and others that it calls, named by ``names``.

    It yields ``block(constructor, params)`` for that constructor of its first parameter; without
    constructors it fails. params: names and types.
    """
    own = tuple(Var(n, t) for n, t in params)
    made: dict[str, Function] = {}
    rest: Block
    if len(constructors) > MOST:
        other = names.unique(name)
        made = by_constructor(other, names, params, result, constructors[MOST:], block)
        rest = _yields(Call(GlobalVar(other, made[other].type), own), result)
    elif not constructors:
        failing = Primitive("fail", (), ("no value of this type was made",), result)
        rest = _yields(failing, result)
    else:
        rest = block(constructors[-1], own)
    asked = constructors[:MOST] if made else constructors[:-1]
    for constructor in reversed(asked):
        builder = BlockBuilder()
        is_one = builder.emit(Primitive("is_variant", (own[0],), (constructor,)))
        both = If(is_one, block(constructor, own), rest)
        rest = builder.finish(builder.emit(both, type=result))
    return {name: Function(own, rest, result), **made}


def _yields(value: Call | Primitive, type_: Type) -> Block:
    builder = BlockBuilder()
    return builder.finish(builder.emit(value, type=type_))
