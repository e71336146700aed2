"""A program whose kernels are observed: the profiler and the debugger are observers of one.

The program is linked anew, with a kernel of its own for every instruction that launches one, so
that what is linked for speed pays nothing.

With META_DEBUG_NANS every kernel is looked at (`nan_observer`). Where a fused one makes a NaN, its
operators are run one by one, on the same arguments. What a fused kernel keeps to itself is not
seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from meta.base.errors import NonFiniteError
from meta.base.registry import OPERATORS
from meta.dialect.core import OpEnv
from meta.dialect.core.ir_calls import called_op
from meta.ir import Module, bindings
from meta.runtime.ndarray import ndarray
from meta.vm.compiler.bytecode import Invoke
from meta.vm.compiler.code import Block, FusedRef
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.launch_sites import LaunchSite, launch_sites
from meta.vm.eager.kernel_contracts import results_of
from meta.vm.eager.nan_checks import numbers_of, require_handed_on, what_is_read
from meta.vm.run.interpreter import run_module
from meta.vm.run.link import Linked, link
from meta.vm.run.workspace import Workspace

# Called with the site, the kernel and the tensors and numbers that it is given; runs the kernel and
# returns what it returns.
Observer = Callable[[LaunchSite, Callable[..., Any], "tuple[Any, ...]"], Any]


def range_observer(kind: str) -> Observer:
    """Return what runs each kernel in a range of its name and the user's line: a record of
    torch.profiler ("torch"), or a range of NVTX ("nvtx").
    """
    named = torch.profiler.record_function if kind == "torch" else torch.cuda.nvtx.range

    def observe(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        with named(site.kernel.name if site.span is None else f"{site.kernel.name} {site.span}"):
            return run(*values)

    return observe


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


def nan_observer(module: Callable[[], Module]) -> Observer:
    """Return an observer that looks for NaN; ``module`` returns the program the kernels are of."""

    def observe(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        i, kernel = site.instruction, site.kernel
        given = values[: len(i.args)]
        if isinstance(kernel, FusedRef):
            kept = [ndarray(v.clone()) if isinstance(v, torch.Tensor) else v for v in given]
            read = {f"argument {n}": numbers_of(v) for n, v in enumerate(given)}
        else:
            op = OPERATORS[kernel.base]
            if op.collective:
                return run(*values)
            read = what_is_read(op, kernel.args, given)
        result = run(*values)
        try:
            outs = operands(site, values, result)[1]
            require_handed_on(read, outs, site.operator, kernel.name, site.span)
        except NonFiniteError as error:
            if isinstance(kernel, FusedRef):
                # Its operators are run one by one, looked at: the first that makes one is the
                # error. The kernel may have written over what it was given.
                program = module()
                fused = program.functions[kernel.function]
                inner = program.with_functions({**program.functions, "main": fused})
                called = filter(None, (called_op(b.value) for b in bindings(fused)))
                within = f"within {kernel}, which is {', '.join(op.name for op in called)}"
                try:
                    run_module(inner, kept)
                except NonFiniteError as first:
                    first.note(within)
                    raise first from None
                error.note(within)
                error.hint = "its operators, run one by one, do not do this"
            raise
        return result

    return observe
