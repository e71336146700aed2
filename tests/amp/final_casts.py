"""Reading the casts of a program at any stage: how many there are, and which cancel."""

from __future__ import annotations

from meta.dialect.core.ir_calls import base_op
from meta.ir import Binding, Call, Module, Var, bindings, type_of
from meta.passes.simplify.casts import represents


def is_cast(binding: Binding | None) -> bool:
    """Whether a binding is a cast between floating point dtypes."""
    value = None if binding is None else binding.value
    op = base_op(value.callee) if isinstance(value, Call) else None
    return op is not None and op.name == "astype"


def all_casts(module: Module) -> list[Binding]:
    """Return the casts of a program, those in fused functions too."""
    every = (b for function in module.functions.values() for b in bindings(function))
    return [b for b in every if is_cast(b)]


def cancelling(module: Module) -> list[str]:
    """Return the casts that give back what an exact cast was made of."""
    found = []
    for name, function in module.functions.items():
        made: dict[Var, Binding] = {b.var: b for b in bindings(function)}
        for binding in filter(is_cast, made.values()):
            wide = binding.value.args[0]
            first = made.get(wide)
            if not is_cast(first):
                continue
            source = type_of(first.value.args[0])
            if source == binding.var.type and represents(type_of(wide).dtype, source.dtype):
                found.append(f"{binding} in @{name}")
    return found
