"""Casting a program by the pass `autocast`: what its tests share."""

from __future__ import annotations

import torch

import meta
from meta.dialect.core.ir_calls import base_op
from meta.ir import Call, Module, bindings, parse, text, verify
from meta.passes import autocast, explain_autocast, infer_type
from meta.testing import check
from meta.vm.run.interpreter import run_module

HALVES = ["float16", "bfloat16"]


def cast_module(source: str, **options: str) -> Module:
    """Parse a program and cast it; it is well typed, and a second time changes nothing."""
    module = infer_type(parse(source))
    made = autocast(module, **options)
    verify(made, typed=True)
    assert len(explain_autocast(made, **options)) == 0, text(made)
    return made


def casts(module: Module, name: str | None = None) -> list[tuple[str, str]]:
    """Return (from, to) of every cast, in the order of the text."""
    functions = module.functions if name is None else {name: module.functions[name]}
    return [
        (binding.value.args[0].type.dtype, binding.var.type.dtype)
        for function in functions.values()
        for binding in bindings(function)
        if is_cast(binding.value)
    ]


def is_cast(value: object) -> bool:
    op = base_op(value.callee) if isinstance(value, Call) else None
    return op is not None and op.name == "astype"


def same_results(module: Module, made: Module, *args: torch.Tensor, rtol: float = 1e-2) -> None:
    """The interpreter and the VM get from the cast program what the original one gives."""
    given = [meta.array(a) for a in args]
    expected = run_module(module, given)
    for found in (run_module(made, given), meta.vm.compile(made)(*given)):
        pairs = zip(_flat(found), _flat(expected), strict=True)
        for one, wanted in pairs:
            check(one, wanted.torch().to(one.torch().dtype), rtol, rtol)


def _flat(value: object) -> list[meta.ndarray]:
    return [v for f in value for v in _flat(f)] if isinstance(value, tuple) else [value]


TO_HALF, TO_WIDE = ("float32", "float16"), ("float16", "float32")
