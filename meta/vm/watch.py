"""A program whose kernels are watched: the profiler and the debugger are observers of one.

The program is linked anew, with a kernel of its own for every instruction that launches one, so
that what is linked for speed pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meta.base.device import Device
from meta.base.source import Span
from meta.dialect.core import OpEnv
from meta.vm.bytecode import Invoke
from meta.vm.code import Block, Code, FusedRef, Kernel
from meta.vm.link import Linked, link


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction that launches a kernel: its number in the program, and where it is."""

    number: int
    function: str
    instruction: Invoke
    kernel: Kernel

    @property
    def dialect(self) -> str:
        """The name of the dialect; empty if that is decided when the program runs."""
        if isinstance(self.kernel, FusedRef):
            return self.kernel.dialect
        return self.kernel.operator.rpartition(".")[0]

    @property
    def operator(self) -> str:
        """The name of the base operator, or of the fused function."""
        if isinstance(self.kernel, FusedRef):
            return self.kernel.function
        return self.kernel.operator.rpartition(".")[2]

    @property
    def span(self) -> Span | None:
        """The user's line."""
        return self.instruction.span


# Called with the site, the kernel and the tensors and numbers that it is given; runs the kernel and
# returns what it returns.
Observer = Callable[[Site, Callable[..., Any], "tuple[Any, ...]"], Any]


def sites(code: Code) -> list[Site]:
    """Return the instructions that launch kernels, in the order of the code."""
    found: list[Site] = []
    for name, function in code.functions.items():
        for i in function.instructions():
            if isinstance(i, Invoke):
                found.append(Site(len(found), name, i, code.kernels[i.kernel]))
    return found


def watched(code: Code, kernels: Sequence[OpEnv], device: Device, observer: Observer) -> Linked:
    """Return a program that runs every kernel through ``observer``."""
    found = sites(code)
    numbers = iter(range(len(found)))

    def renumbered(block: Block) -> Block:
        return tuple(
            replace(i, kernel=next(numbers)) if isinstance(i, Invoke) else i for i in block
        )

    functions = {
        name: replace(f, blocks=tuple(map(renumbered, f.blocks)))
        for name, f in code.functions.items()
    }
    envs = [_watched(kernels[site.instruction.kernel], partial(observer, site)) for site in found]
    own = replace(code, functions=functions, kernels=tuple(site.kernel for site in found))
    return link(own, envs, device)


def _watched(env: OpEnv, observer: Callable[..., Any]) -> OpEnv:
    def run(*values: Any) -> Any:
        return observer(env.run, values)

    return OpEnv(run, allocates=env.allocates, strided=env.strided, dialect_op=env.dialect_op)


def operands(
    site: Site, values: tuple[Any, ...], result: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what a kernel read and what it made: its own results, then what it wrote in place."""
    i = site.instruction
    arguments, outs = values[: len(i.args)], values[len(i.args) :]
    if not i.fills:
        outs = result if isinstance(result, tuple) else () if result is None else (result,)
    written = [v for r, v in zip(i.args, arguments, strict=True) if r in i.written]
    return arguments, (*outs, *written)
