"""Programs with numbers in the place of symbolic dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meta.ir import (
    Binding,
    Call,
    Dim,
    Function,
    Module,
    Var,
    substitute,
)
from meta.passes.rewrite import rewrite, with_value
from meta.vm.compiler.calling_convention import DIMS
from meta.vm.compiler.kernels import evaluated
from meta.vm.compiler.specialize import with_numbers


def with_extents(module: Module, extents: Mapping[str, Dim]) -> Module:
    """Return a module whose calls have numbers in the place of symbolic extents."""
    if not extents:
        return module
    known = {name: extent for name, extent in extents.items() if isinstance(extent, int)}

    def rule(binding: Binding) -> Binding:
        value = binding.value
        if not isinstance(value, Call):
            return binding
        return with_value(binding, replace(value, args=evaluated(value.args, known)))

    return rewrite(module, rule)


def of_sizes(module: Module, extents: Mapping[str, int]) -> Module:
    """Return a program whose main takes arrays of these extents. Its types are to be inferred."""
    main = module.main
    types = [with_numbers(p.type, extents) for p in main.params]
    params = tuple(Var(p.name, t) for p, t in zip(main.params, types, strict=True))
    body = substitute(main.body, dict(zip(main.params, params, strict=True)))
    attrs = {name: value for name, value in main.attrs.items() if name != DIMS}
    whole = {**module.functions, "main": Function(params, body, None, attrs)}
    return with_extents(module.with_functions(whole), extents)
