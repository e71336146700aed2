"""Matches on constructors: functions that do something else for each constructor of a data
value.
"""

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

MAX_CONSTRUCTORS = 16
"""Constructors that one function asks for, since blocks must not nest deep."""


def match_constructor(
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
    if len(constructors) > MAX_CONSTRUCTORS:
        other = names.unique(name)
        made = match_constructor(
            other, names, params, result, constructors[MAX_CONSTRUCTORS:], block
        )
        rest = _block_of(Call(GlobalVar(other, made[other].type), own), result)
    elif not constructors:
        failing = Primitive("fail", (), ("no value of this type was made",), result)
        rest = _block_of(failing, result)
    else:
        rest = block(constructors[-1], own)
    asked = constructors[:MAX_CONSTRUCTORS] if made else constructors[:-1]
    for constructor in reversed(asked):
        builder = BlockBuilder()
        is_one = builder.emit(Primitive("is_variant", (own[0],), (constructor,)))
        both = If(is_one, block(constructor, own), rest)
        rest = builder.finish(builder.emit(both, type=result))
    return {name: Function(own, rest, result), **made}


def _block_of(value: Call | Primitive, type_: Type) -> Block:
    builder = BlockBuilder()
    return builder.finish(builder.emit(value, type=type_))
