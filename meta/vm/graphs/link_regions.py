"""Linking with CUDA graphs: which regions of a function become `GraphStep`s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType

import torch

from meta.ir import TupleType, Type, type_bytes
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.launch_sites import LaunchSite
from meta.vm.compiler.output_buffers import Output
from meta.vm.graphs.capture import MIN_KERNELS, Graphs
from meta.vm.graphs.rank_agreement import HOLDERS, ranks_of
from meta.vm.graphs.region_step import GraphStep
from meta.vm.graphs.regions import (
    GraphRegion,
    RegionStatus,
    is_key,
    key_registers,
    regions,
    why_not,
)

Link = Callable[..., FunctionType]
TOO_FEW = f"a graph pays from {MIN_KERNELS} kernels in a row on"


def escaping(block: Block) -> frozenset[bc.Register]:
    """Return the registers whose memory may be that of a straight-line program's result."""
    return _memory_of(block, block[-1].reads)


LARGE_RESULT = 16 << 20
"""Bytes of a result from which on a launch of its own costs less than a copy."""
MOST_LAST = 4
"""How many results, the largest, are computed outside of graphs: each may cut one in two."""


def large_last(
    block: Block, outputs: Mapping[bc.Register, Output], result: Type
) -> frozenset[bc.Register]:
    """Return the registers of large results that the caller gets and no kernel of a straight-line
    program reads. A graph computes each of its results in the same memory, from which it is copied
    for the caller; a kernel outside of graphs fills the caller's memory.
    """
    last, types = block[-1], list(_flat(result))
    assert isinstance(last, bc.Return)
    if len(types) != len(list(bc.registers_of(last.value))):  # a register is a tuple
        return frozenset()
    reads = {r for i in block if isinstance(i, bc.Invoke) for r in i.args}
    found: dict[int, set[bc.Register]] = {}
    for register, output in outputs.items():
        found.setdefault(output.result, set()).add(register)
    sizes = {n: type_bytes(types[n]) for n, own in found.items() if not own & reads}
    large = sorted((n for n in sizes if sizes[n] >= LARGE_RESULT), key=lambda n: -sizes[n])
    return frozenset[bc.Register]().union(*(found[n] for n in large[:MOST_LAST]))


def _flat(type_: Type) -> Iterator[Type]:
    """Iterate over a type, or over those that a tuple type is made of."""
    if isinstance(type_, TupleType):
        for field in type_.fields:
            yield from _flat(field)
    else:
        yield type_


def _memory_of(block: Block, results: Iterable[bc.Register]) -> frozenset[bc.Register]:
    found = set(results)
    for i in reversed(block[:-1]):
        if isinstance(i, bc.Invoke | bc.AllocateTensor | bc.Release):
            continue
        if not i.results or found.intersection(i.results):
            found.update(i.reads)
    return frozenset(found)


def _written(inside: Block) -> frozenset[bc.Register]:
    """Return what instructions write in place; of a view, what it is a view of."""
    roots: dict[bc.Register, bc.Register] = {}
    for i in inside:
        if isinstance(i, bc.ViewTensor | bc.OwnShard):
            roots[i.out] = roots.get(i.source, i.source)
    return frozenset(roots.get(r, r) for i in inside if isinstance(i, bc.Invoke) for r in i.written)


class Grapher:
    """Finds the regions of one program and links them.

    ``escaping``: of a straight-line program, the registers whose memory outlives a run; None: any
    may. ``last``: those that are computed outside of graphs (`large_last`).
    """

    def __init__(self, program: BoundProgram, graphs: Graphs) -> None:
        self.code, self.kernels, self.graphs = program.code, program.kernels, graphs
        self.escaping: frozenset[bc.Register] | None = None
        self.last: frozenset[bc.Register] = frozenset()
        # Kernels by number that could not be recorded, and why.
        self._failed: dict[int, str] = {}
        self._keys: dict[str, dict[bc.Register, int]] = {}
        for name, function in self.code.functions.items():
            registers = key_registers(function, self.code.kernels)
            first = graphs.keys.reserve(len(registers)).start
            self._keys[name] = {r: first + i for i, r in enumerate(registers)}

    def keys(self, name: str) -> dict[bc.Register, torch.Tensor]:
        """Return where the random keys of a function are, by register."""
        tensor = self.graphs.keys.tensor
        return {r: tensor[at : at + 1] for r, at in self._keys[name].items()}

    def regions(self, name: str, block: Block, begin: int, end: int) -> Iterator[GraphRegion]:
        """Iterate over the regions among instructions of a block that may be recorded."""
        fixed = self.code.functions[name].fixed()
        for region in regions(block, fixed, self.reason, self.is_key):
            if not begin <= region.begin < end:
                continue
            if region.kernels < MIN_KERNELS and not region.keys:
                self.graphs.reasons[TOO_FEW] = None
                continue
            yield region

    def reason(self, instruction: bc.Instruction) -> str | None:
        """Return why a graph cannot hold an instruction, and note it."""
        if isinstance(instruction, bc.Invoke):
            number = instruction.kernel
            kernel = self.code.kernels[number]
            found = why_not(instruction, kernel, self.kernels[number])
            if number in self._failed:
                found = f"{kernel.name}: {self._failed[number]}"
            elif self.last.intersection(instruction.outs):
                found = f"{kernel.name}: its result is large, and a graph's would be copied"
        elif isinstance(instruction, bc.AllocateTensor) and instruction.out in self.last:
            found = "memory of a large result is new in each call"
        else:
            found = why_not(instruction, None, None)
        if found is not None:
            self.graphs.reasons[found] = None
        return found

    def is_key(self, invoke: bc.Invoke) -> bool:
        """Whether an instruction draws a random key."""
        return is_key(self.code.kernels[invoke.kernel])

    def graph_step(
        self, name: str, block: Block, region: GraphRegion, link: Link, drawn: bool
    ) -> GraphStep:
        """Link a region; ``drawn``: its random keys are drawn by what runs it."""
        inside = block[region.begin : region.end]
        keys = self._keys[name]
        first = keys[region.keys[0]] if region.keys else 0
        status = RegionStatus(name, region.kernels)
        if region.kernels < MIN_KERNELS:
            status.reason = TOO_FEW
        self.graphs.statuses.append(status)
        ranks = ranks_of(self.code.kernels[i.kernel] for i in inside if isinstance(i, bc.Invoke))
        if ranks is not None:
            HOLDERS.add(self.graphs)
        arguments = len(self.code.params) if name == self.code.entry else 0
        first_array = max(arguments - self.graphs.arrays, 0)
        escaping = self.escaping

        def split(site: LaunchSite, reason: str) -> FunctionType:
            self._failed[site.instruction.kernel] = reason
            return link(region.begin, region.end, split=True)

        step = GraphStep(
            self.graphs,
            region,
            link(region.begin, region.end, split=False),
            split,
            status,
            written=_written(inside),
            keys=slice(first, first if drawn else first + len(region.keys)),
            arguments=arguments,
            bound=frozenset(range(first_array, arguments)),
            escapes=lambda r: escaping is None or r in escaping,
            ranks=ranks,
            copies=partial(self.graphs.copies, block, region),
        )
        self.graphs.steps.append(step)
        return step
