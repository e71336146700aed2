"""What `fuse_operators` makes of a program by hand: the program, and its kernels by name."""

from __future__ import annotations

from meta.ir import Call, GlobalVar, Module, bindings, parse, structural_equal, verify
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
