"""A program whose kernels are observed: the profiler and the debugger are observers of one.

The program is linked anew, with a kernel of its own for every instruction that launches one, so
that what is linked for speed pays nothing.

With META_CHECK_FINITE every kernel is checked (`finite_observer`). A fused kernel that fails is
looked into: its operators are run one by one, on the same arguments. What a fused kernel keeps to
itself is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import FROM_TORCH
from meta.base.errors import NonFiniteError
from meta.dialect.core import OpEnv
from meta.ir import Module, TensorType
from meta.runtime.ndarray import ndarray
from meta.vm.compiler.bytecode import Invoke
from meta.vm.compiler.code import Block, FusedRef, KernelRef
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.launch_sites import LaunchSite, launch_sites
from meta.vm.eager.kernel_contracts import results_of
from meta.vm.eager.launch_checks import kinds_of, require_finite
from meta.vm.run.interpreter import run_module
from meta.vm.run.link import Linked, link
from meta.vm.run.workspace import Workspace

# Called with the site, the kernel and the tensors and numbers that it is given; runs the kernel and
# returns what it returns.
Observer = Callable[[LaunchSite, Callable[..., Any], "tuple[Any, ...]"], Any]


def observed(
    program: BoundProgram, observer: Observer, workspace: Workspace | None = None
) -> Linked:
    """Return a program that runs every kernel through ``observer``."""
    code = program.code
    found = launch_sites(code)
    numbers = iter(range(len(found)))

    def renumbered(block: Block) -> Block:
        return tuple(
            replace(i, kernel=next(numbers)) if isinstance(i, Invoke) else i for i in block
        )

    functions = {
        name: replace(f, blocks=tuple(map(renumbered, f.blocks)))
        for name, f in code.functions.items()
    }
    own = replace(code, functions=functions, kernels=tuple(site.kernel for site in found))
    kernels = tuple(
        _observed(program.kernels[site.instruction.kernel], partial(observer, site))
        for site in found
    )
    return link(replace(program, code=own, kernels=kernels), workspace=workspace)


def _observed(env: OpEnv, observer: Callable[..., Any]) -> OpEnv:
    def run(*values: Any) -> Any:
        return observer(env.run, values)

    made = OpEnv(run, allocates=env.allocates, strided=env.strided, dialect_op=env.dialect_op)
    made.state = env.state
    return made


def operands(
    site: LaunchSite, values: tuple[Any, ...], result: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what a kernel read and what it made: its own results, then what it wrote in place."""
    i = site.instruction
    arguments, outs = values[: len(i.args)], values[len(i.args) :]
    if not i.fills:
        outs = results_of(result)
    written = [v for r, v in zip(i.args, arguments, strict=True) if r in i.written]
    return arguments, (*outs, *written)


def finite_observer(module: Callable[[], Module]) -> Observer:
    """Return an observer that checks kernels; ``module`` returns the program they are of."""

    def observe(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        given = values[: len(site.instruction.args)]
        fused = isinstance(site.kernel, FusedRef)
        # A fused kernel may write over what it was given.
        kept = (
            tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in given) if fused else ()
        )
        before = kinds_of((*given, *_constants(site)))
        described = ", ".join(map(_described, given))
        result = run(*values)
        try:
            outs = operands(site, values, result)[1]
            require_finite(before, outs, site.operator, f"{site.operator}({described})", site.span)
        except NonFiniteError as error:
            if fused:
                # Its operators are run one by one, checked: the first that fails is the error.
                program = module()
                main = program.functions[site.operator]
                inner = program.with_functions({**program.functions, "main": main})
                arrays = [ndarray(v) if isinstance(v, torch.Tensor) else v for v in kept]
                with config.override(META_CHECK_FINITE=True):
                    run_module(inner, arrays)
                error.hint = "it is a fused kernel, and its operators, one by one, do not do this"
            raise
        return result

    return observe


def _constants(site: LaunchSite) -> Iterable[float]:
    if not isinstance(site.kernel, KernelRef):
        return ()
    return (a for a in site.kernel.args if isinstance(a, float))


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(TensorType(tuple(value.shape), FROM_TORCH[value.dtype]))
    return repr(value)
