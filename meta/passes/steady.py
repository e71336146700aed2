"""What is the same in every run of a program: what is computed of constants and of arrays of a
model that the program does not write.

Main's attribute `ARRAYS` says which parameters are such arrays. The pass `prepare` has such values
computed once; a pass that would rather compute more, if only once, asks here what is one.
"""

from __future__ import annotations

from meta.ir import (
    Binding,
    Call,
    Constant,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    operands,
)
from meta.op.core import Op
from meta.passes.buffers import Buffers, Summaries, owner
from meta.passes.calls import is_pure

ARRAYS = "arrays"
"""Attribute of main: how many of its last parameters are arrays that others write rarely, and only
between runs: those of a model in infer mode.
"""


def steady(module: Module) -> frozenset[Var]:
    """Return the variables of main whose values are the same in every run: the arrays that it does
    not write, and what its outermost block computes of them.

    What is computed of constants alone is not among them: `fold_constant` has computed what pays.
    """
    count = module.main.attrs.get(ARRAYS, 0) if "main" in module.functions else 0
    if not count:
        return frozenset()
    main = module.main
    buffers = Buffers(main, Summaries(module))
    written = {owner(buffer) for buffer in buffers.written}
    found = {p for p in main.params[-count:] if p not in written and _is_static(p.type)}
    for binding in main.body.bindings:
        if _is_of(found, binding) and owner(buffers.of(binding.var)) not in written:
            found.add(binding.var)
    return frozenset(found)


def _is_of(known: set[Var], binding: Binding) -> bool:
    """Whether a binding is computed of known variables, at least one, and constants."""
    value = binding.value
    if isinstance(value, Call):
        if not isinstance(value.callee, Op) or not is_pure(binding):
            return False
    elif not isinstance(value, Tuple | TupleGetItem):
        return False
    given = {a for a in operands(value) if not isinstance(a, Constant | Op)}
    return bool(given) and given <= known and _is_static(binding.var.type)


def _is_static(type_: Type | None) -> bool:
    if isinstance(type_, TupleType):
        return all(map(_is_static, type_.fields))
    return isinstance(type_, TensorType) and type_.is_static
