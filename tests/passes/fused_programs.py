"""What `fuse_operators` makes of a program by hand: the program, and its kernels by name; and what
such a program computes on torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from meta.ir import (
    Call,
    GlobalVar,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    bindings,
    parse,
    structural_equal,
    verify,
)
from meta.passes import fuse_operators


def fused(parameters: str, body: str, recompute: bool = False) -> Module:
    """Fuse a main with these parameters, and check that nothing is left to fuse."""
    after = fuse_operators(parse(f"func @main({parameters}) {body}"), recompute=recompute)
    verify(after, typed=False)
    assert structural_equal(fuse_operators(after, recompute=recompute), after)
    return after


def kernels(module: Module) -> list[str]:
    """Return the calls of main, in order: operators by name, fused functions as their members."""
    found = []
    for binding in bindings(module.main):
        if not isinstance(binding.value, Call):
            continue
        callee = binding.value.callee
        if isinstance(callee, GlobalVar):
            members = [b.value.callee.name for b in module.functions[callee.name].body.bindings]
            found.append(" ".join(m.removeprefix("tvm.") for m in members))
        else:
            found.append(callee.name.removeprefix("tvm."))
    return found


def run_on_torch(
    module: Module,
    args: Sequence[torch.Tensor],
    calls: Mapping[str, Callable[..., Any]],
    name: str = "main",
) -> list[torch.Tensor]:
    """Run a function of a program; calls: what stands for each operator."""
    function = module.functions[name]
    values: dict[Any, Any] = dict(zip(function.params, args, strict=True))
    for binding in function.body.bindings:
        value: Any = binding.value
        if isinstance(value, TupleGetItem):
            values[binding.var] = values[value.value][value.index]
            continue
        given = [values[a] if isinstance(a, Var) else a for a in value.args]
        if isinstance(value.callee, GlobalVar):
            results = run_on_torch(module, given, calls, value.callee.name)
            values[binding.var] = results[0] if len(results) == 1 else results
        else:
            values[binding.var] = calls[value.callee.name.removeprefix("tvm.")](*given)
    result: Any = function.body.result
    return [values[r] for r in (result.fields if isinstance(result, Tuple) else (result,))]
