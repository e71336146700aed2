"""Which instructions of a block one CUDA graph may hold.

A region is a run of kernels, and of the views and allocations between them, with nothing in it that
the host decides. What a region takes from outside and what it leaves behind is told by registers.
To let another instruction into graphs, add it to `why_not`. `region_step.py` runs a region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meta.base.device import CPU
from meta.base.registry import OPERATORS
from meta.dialect.core import OpEnv
from meta.runtime.random import KEY_SLOT
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import FunctionCode, Kernel, KernelRef

RANDOM_KEY = "random_key"
_VIEW = bc.ViewTensor | bc.OwnShard
_NEUTRAL = bc.AllocateTensor | _VIEW | bc.Release
_LOADED = bc.LoadConstant | bc.AllocateStorage


@dataclass(frozen=True, slots=True)
class GraphRegion:
    """Instructions ``begin`` to ``end`` of a block.

    Attributes
    ----------
    kernels: the kernels launched. keys: the registers of random keys, in the order of drawing.
    ins: registers that are read and were set before. outs: those that are set and needed later.
    released: those of ``ins`` that nobody needs any more. views: what views of ``ins`` set.
    """

    begin: int
    end: int
    kernels: int
    keys: tuple[bc.Register, ...]
    ins: tuple[bc.Register, ...]
    outs: tuple[bc.Register, ...]
    released: tuple[bc.Register, ...]
    views: frozenset[bc.Register]


def why_not(instruction: bc.Instruction, kernel: Kernel | None, env: OpEnv | None) -> str | None:
    """Return why a graph cannot hold an instruction (of this kernel), None if it can."""
    if isinstance(instruction, _NEUTRAL):
        return None
    if isinstance(instruction, bc.Extent | bc.Check):
        return "extents are known at run time only"
    if not isinstance(instruction, bc.Invoke):
        return "the host handles tuples, data values, references and closures"
    assert kernel is not None and env is not None
    if isinstance(kernel, KernelRef):
        if not kernel.is_static or (env.allocates and not _has_static_results(kernel)):
            return f"{kernel.name}: extents are known at run time only"
        if _draws_on_host(kernel):
            return f"{kernel.name}: its random key is drawn on the host when it is launched"
    return f"{kernel.name}: {env.not_capturable}" if env.not_capturable else None


def _has_static_results(kernel: KernelRef) -> bool:
    call = OPERATORS[kernel.base].call_values(kernel.args, CPU)
    return all(t.is_static for t in call.outputs)


def is_key(kernel: Kernel) -> bool:
    """Whether a kernel does nothing but draw a random key."""
    return isinstance(kernel, KernelRef) and kernel.base == RANDOM_KEY


def _draws_on_host(kernel: KernelRef) -> bool:
    op = OPERATORS[kernel.base]
    if not op.random or op.name == RANDOM_KEY:
        return False
    slot = op.schema.index.get(KEY_SLOT)
    return slot is None or kernel.args[slot] is None


def regions(
    block: Sequence[bc.Instruction],
    fixed: frozenset[bc.Register],
    reason: Callable[[bc.Instruction], str | None],
    is_key: Callable[[bc.Invoke], bool],
) -> list[GraphRegion]:
    """Return the regions of a block, in order, as long as they can be.

    ``fixed``: registers that are the same in every activation (`FunctionCode.fixed`). ``reason``
    says why a graph cannot hold an instruction that is no terminator and no call. A region ends
    with a kernel and views right behind it: other things cost the host no more outside. It begins
    with the allocations and views before its first kernel: a view of a static argument is static
    there.
    """
    found: list[GraphRegion] = []
    begin: int | None = None
    last = -1
    for at, instruction in enumerate(block):
        stops = isinstance(instruction, bc.CallFunction | bc.Terminator)
        if isinstance(instruction, _LOADED):
            continue
        if stops or reason(instruction) is not None:
            if begin is not None:
                found.append(_region(block, begin, last + 1, fixed, is_key))
            begin = None
        elif isinstance(instruction, bc.Invoke):
            if begin is None:
                begin = at
                while begin and isinstance(block[begin - 1], _NEUTRAL):
                    begin -= 1
            last = at
        elif isinstance(instruction, _VIEW) and begin is not None and last == at - 1:
            last = at
    return found


def _region(
    block: Sequence[bc.Instruction],
    begin: int,
    end: int,
    fixed: frozenset[bc.Register],
    is_key: Callable[[bc.Invoke], bool],
) -> GraphRegion:
    ins: dict[bc.Register, None] = {}
    made: set[bc.Register] = set()
    released: set[bc.Register] = set()
    views: set[bc.Register] = set()
    keys: list[bc.Register] = []
    kernels = 0
    for i in block[begin:end]:
        if isinstance(i, bc.Release):
            released.update(i.registers)
            continue
        ins.update((r, None) for r in i.reads if r not in made and r not in fixed)
        made.update(r for r in i.results if r not in fixed)
        if isinstance(i, _VIEW) and (i.source in ins or i.source in views):
            views.add(i.out)
        if isinstance(i, bc.Invoke):
            if is_key(i):
                keys.append(i.outs[0])
            else:
                kernels += 1
    needed = made - released
    if not any(isinstance(i, bc.Branch | bc.Jump) for i in block):  # nothing runs after the block
        needed &= {r for i in block[end:] for r in i.reads}
    return GraphRegion(
        *(begin, end, kernels, tuple(keys), tuple(ins), tuple(sorted(needed))),
        tuple(sorted(released & ins.keys())),
        frozenset(views),
    )


def key_registers(function: FunctionCode, kernels: Sequence[Kernel]) -> list[bc.Register]:
    """Return the registers of a function's random keys, in order."""
    return [
        i.outs[0]
        for i in function.instructions()
        if isinstance(i, bc.Invoke) and is_key(kernels[i.kernel])
    ]


@dataclass(slots=True)
class RegionStatus:
    """What has become of a region: how many graphs were recorded, or why none is; whether it was
    split into others.
    """

    function: str
    kernels: int
    graphs: int = 0
    reason: str = ""
    split: bool = False

    def __str__(self) -> str:
        if self.reason:
            return f"{self.kernels} kernels of @{self.function} one by one: {self.reason}"
        state = "to be recorded" if not self.graphs else "recorded"
        return f"{self.kernels} kernels of @{self.function} as a CUDA graph, {state}"
