"""From code and kernels to what runs.

Each function of the code becomes Python functions (`python_codegen.py`) in which everything that is
the same at every run is in place already: a straight-line program one function of its arguments,
another one the segments of a `Routine` for the machine. Regions that CUDA graphs may hold are
called in these as `GraphStep`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch

from meta.runtime.allocate import storage_address
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block
from meta.vm.compiler.code_analysis import CONSTANT, CodeSummary, summaries
from meta.vm.compiler.kernels import REMEMBERED, BoundProgram
from meta.vm.compiler.launch_sites import launch_sites
from meta.vm.compiler.output_buffers import OutputBuffers, own_outputs
from meta.vm.compiler.specialize import extents_of, is_symbolic, specialized
from meta.vm.graphs.capture import Graphs
from meta.vm.graphs.input_memory import free_offsets
from meta.vm.graphs.link_regions import Grapher, escaping, large_last
from meta.vm.graphs.regions import GraphRegion
from meta.vm.run.machine import Enter, Fork, Goto, Leave, Registers, Routine, Segment, run
from meta.vm.run.python_codegen import PythonWriter, returned_twice
from meta.vm.run.rank_consistency import with_equal_programs
from meta.vm.run.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Linked:
    """A program ready to run.

    ``run`` takes torch tensors and returns a tensor or a nested tuple of them; one call at a time.
    ``written``: the parameters that may be written in place. ``returned``: those that may be (part
    of) a result. ``constants``: addresses of constants that may be. ``arena_bytes``: memory kept
    for intermediates.
    """

    run: Callable[[list[torch.Tensor]], Any]
    written: frozenset[int]
    returned: frozenset[int]
    constants: frozenset[int]
    arena_bytes: int
    fill: Callable[..., Any] | None = None


def link(
    program: BoundProgram, graphs: Graphs | None = None, workspace: Workspace | None = None
) -> Linked:
    """Link a program with its kernels; with ``graphs``, what can be recorded will be. workspace:
    what the arena of its entry lies in; one of its own.
    """
    code = program.code
    found = summaries(code)
    entry = found[code.entry]
    addresses = frozenset(storage_address(c) for c in code.constants if isinstance(c, torch.Tensor))
    function = code.functions[code.entry]
    guards = any(CONSTANT in summary.written for summary in found.values())
    if guards and graphs is not None:
        graphs.reasons["before each write it is looked whether it is one to a constant"] = None
        graphs = None
    instructions = [i for f in code.functions.values() for i in f.instructions()]
    if graphs is not None and any(isinstance(i, bc.CheckIndices) for i in instructions):
        graphs.reasons["META_CHECK_INDICES looks at indices before kernels run"] = None
        graphs = None
    if workspace is None:
        workspace = Workspace(program.device)
    if is_symbolic(code):
        run = ByExtents(program, workspace)
        written = frozenset(r for r in entry.written if r >= 0)
        returned = frozenset(r for r in entry.returned if r >= 0)
        constants = addresses if CONSTANT in entry.returned else frozenset()
        return Linked(run, written, returned, constants, 0)
    linker = _Linker(program, addresses, guards, graphs, workspace)
    storages = [i.size for i in instructions if isinstance(i, bc.AllocateStorage)]
    jumps = bc.CallFunction | bc.MakeClosure | bc.Branch | bc.Jump | bc.TailCall
    is_straight = not any(isinstance(i, jumps) for i in function.instructions())
    linked = Linked(
        linker.straight(entry) if is_straight else linker.general(),
        frozenset(r for r in entry.written if r >= 0),
        frozenset(r for r in entry.returned if r >= 0),
        addresses if CONSTANT in entry.returned else frozenset(),
        sum(storages),
        linker.fill,
    )
    return with_equal_programs(program, linked, graphs)


class ByExtents:
    """A program with symbolic dimensions: written, planned and linked for the extents of each call,
    and kept for those that were met last.
    """

    def __init__(self, program: BoundProgram, workspace: Workspace) -> None:
        self._program, self._workspace = program, workspace
        self._where = extents_of(program.code)
        self._linked = lru_cache(maxsize=REMEMBERED)(self._link)

    def __call__(self, args: list[torch.Tensor]) -> Any:
        extents = tuple([args[number].shape[axis] for number, axis in self._where.values()])
        return self._linked(extents)(args)

    def _link(self, extents: tuple[int, ...]) -> Callable[[list[torch.Tensor]], Any]:
        code = specialized(self._program.code, dict(zip(self._where, extents, strict=True)))
        instructions = code.functions[code.entry].instructions()
        size = sum(i.size for i in instructions if isinstance(i, bc.AllocateStorage))
        if size > self._workspace.size > 0:
            # All have one memory, which does not grow where it is.
            size = max(size, 2 * self._workspace.size)
            self._workspace = Workspace(self._program.device)
            self._workspace.reserve(size)
            self._linked.cache_clear()
        return link(replace(self._program, code=code), workspace=self._workspace).run


def _copies(
    workspace: Workspace,
    block: Block,
    region: GraphRegion,
    given: Mapping[bc.Register, torch.Tensor],
) -> dict[bc.Register, torch.Tensor]:
    """Copy inputs of a region to where nothing lies until each was read; return these copies."""
    sizes = {r: t.nbytes for r, t in given.items() if t.is_contiguous()}
    offsets = free_offsets(block, region, sizes, workspace.gaps(), workspace.size)
    return {r: workspace.copy(given[r], at) for r, at in offsets.items()}


class _Linker:
    def __init__(
        self,
        program: BoundProgram,
        addresses: frozenset[int],
        guards: bool,
        graphs: Graphs | None,
        workspace: Workspace,
    ) -> None:
        self.program, self.workspace = program, workspace
        self.code, self.device = program.code, program.device
        self.grapher = None if graphs is None else Grapher(program, graphs)
        # Where constants lie, if there may be a kernel that writes one.
        self.constants = addresses if guards else None
        self.sites = {id(site.instruction): site for site in launch_sites(program.code)}
        self.routines = {n: Routine(n, f.params) for n, f in self.code.functions.items()}
        self.buffers: OutputBuffers | None = None
        self.fill: Callable[..., Any] | None = None

    def straight(self, summary: CodeSummary) -> Callable[[list[torch.Tensor]], Any]:
        """Return the entry, a straight-line function, as a function of its arguments."""
        name = self.code.entry
        function = self.code.functions[name]
        template = self.template(name)
        (block,) = function.blocks
        buffers = OutputBuffers(own_outputs(block, function.params))
        if self.grapher is None:
            shared = summary.written | summary.returned | returned_twice(block)
            write = partial(self.whole, template, block, shared)
            self.fill = _filling(write, buffers) if buffers.filled else None
            return write()
        self.grapher.escaping = escaping(block)
        self.grapher.graphs.copies = partial(_copies, self.workspace)
        if not self.grapher.graphs.required:
            fixed = function.fixed()
            fresh = {r: output for r, output in buffers.outputs.items() if r not in fixed}
            self.grapher.last = large_last(block, fresh, self.code.result)
        self.grapher.graphs.buffers = self.buffers = buffers
        run = self.whole(template, block)
        rest = template[function.params :]

        def execute(args: list[torch.Tensor]) -> Any:
            return run([*args, *rest])

        self.fill = _filling(lambda _: execute, buffers) if buffers.outputs else None
        return execute

    def general(self) -> Callable[[list[torch.Tensor]], Any]:
        """Return the entry, run on the machine."""
        for routine in self.routines.values():
            self.link_routine(routine)
        entry = self.routines[self.code.entry]
        return lambda args: run(entry, args)

    # What is in the registers of a frame before it runs.

    def template(self, name: str) -> Registers:
        """Return registers with constants in place, and tensors in memory that is allocated now."""
        function = self.code.functions[name]
        registers: Registers = [None] * function.registers
        fixed = function.fixed()
        keys = {} if self.grapher is None else self.grapher.keys(name)
        for i in function.instructions():
            match i:
                case bc.LoadConstant():
                    registers[i.out] = self.code.constants[i.constant]
                case bc.AllocateStorage():
                    entry = name == self.code.entry
                    registers[i.out] = self.workspace if entry else Workspace(self.device)
                    registers[i.out].reserve(i.size)
                case bc.AllocateTensor() if i.out in fixed and i.out in keys:
                    registers[i.out] = keys[i.out]
                case bc.AllocateTensor() if i.storage is not None:
                    registers[i.out] = registers[i.storage].tensor(i.type, i.offset)
                case bc.ViewTensor() if i.out in fixed:
                    registers[i.out] = registers[i.source].view(i.type.static_shape)
        if self.grapher is not None:
            self.grapher.graphs.fix(registers)
        return registers

    # Functions.

    def writer(self, name: str, template: Registers, **options: Any) -> PythonWriter:
        options.setdefault("buffers", self.buffers)
        return PythonWriter(
            self.program,
            self.code.functions[name],
            template,
            self.sites,
            routines=self.routines,
            constants=self.constants,
            **options,
        )

    def whole(
        self,
        template: Registers,
        block: Block,
        shared: frozenset[bc.Register] | None = None,
        buffers: OutputBuffers | None = None,
    ) -> Callable[[list[Any]], Any]:
        """Return the one block of the entry as a function: of arguments if there is ``shared``, and
        of registers, among which are regions, if there is not.
        """
        last = block[-1]
        assert isinstance(last, bc.Return)
        name = self.code.entry
        writer = self.writer(name, template, shared=shared, buffers=buffers or self.buffers)
        writer.begin("run")
        self.write(writer, name, block, 0, len(block) - 1)
        writer.end(writer.operand(last.value))
        found: Callable[[list[Any]], Any] = writer.functions().pop("run")
        return found

    def link_routine(self, routine: Routine) -> None:
        """Link one function; those that it calls may be linked later."""
        name = routine.name
        routine.template = self.template(name)
        function = self.code.functions[name]
        writer = self.writer(name, routine.template)
        starts = [Segment() for _ in function.blocks]
        routine.start = starts[0]
        segments: list[Segment] = []
        for start, block in zip(starts, function.blocks, strict=True):
            self.write_block(writer, name, start, block, starts, segments)
        functions = writer.functions()
        for number, segment in enumerate(segments):
            segment.run = functions.pop(f"s{number}")

    def write_block(
        self,
        writer: PythonWriter,
        name: str,
        segment: Segment,
        block: Block,
        starts: list[Segment],
        segments: list[Segment],
    ) -> None:
        """Write a block: a segment up to each call, and one for the rest; note them in order."""
        begin = 0
        for at, i in enumerate(block):
            if not isinstance(i, bc.CallFunction | bc.Terminator):
                continue
            writer.begin(f"s{len(segments)}")
            segments.append(segment)
            self.write(writer, name, block, begin, at)
            begin = at + 1
            match i:
                case bc.CallFunction():
                    after, follower = block[begin], Segment()
                    released = after.registers if isinstance(after, bc.Release) else ()
                    dead = tuple(r for r in released if r != i.out)
                    if released == dead:
                        begin += bool(dead)  # that was all the release had to do
                    writer.end(_entered(writer, i), dead)
                    segment.exit = Enter(self.callee(i), i.out, follower, i.span)
                    segment = follower
                case bc.TailCall():
                    writer.end(_entered(writer, i))
                    segment.exit = Enter(self.callee(i))
                case bc.Branch():
                    writer.end(writer.name(i.condition))
                    segment.exit = Fork(starts[i.then], starts[i.otherwise])
                case bc.Jump():
                    writer.end()
                    segment.exit = Goto(starts[i.target])
                case bc.Return():
                    writer.end(writer.operand(i.value))
                    segment.exit = Leave()

    def callee(self, i: bc.CallFunction | bc.TailCall) -> Routine | None:
        return self.routines[i.callee] if isinstance(i.callee, str) else None

    # Instructions.

    def write(
        self,
        writer: PythonWriter,
        name: str,
        block: Block,
        begin: int,
        end: int,
        drawn: bool = False,
    ) -> None:
        """Write instructions of a block, no call, of which regions become steps; ``drawn``: their
        random keys are drawn already.
        """
        if self.grapher is not None:
            link = partial(self.region, name, writer.template, block)
            for region in self.grapher.regions(name, block, begin, end):
                writer.instructions(block[begin : region.begin])
                step = self.grapher.graph_step(name, block, region, link, drawn)
                writer.run_on_registers(step)
                begin = region.end
        writer.instructions(block[begin:end])

    def region(
        self, name: str, template: Registers, block: Block, begin: int, end: int, split: bool
    ) -> FunctionType:
        """Return instructions of a region as a function of the registers; ``split``: what is left
        of it are smaller regions.
        """
        assert self.grapher is not None
        writer = self.writer(name, template, keys=self.grapher.keys(name))
        writer.begin("run")
        if split:
            self.write(writer, name, block, begin, end, drawn=True)
        else:
            writer.instructions(block[begin:end])
        writer.end()
        found: FunctionType = writer.functions().pop("run")
        return found


def _entered(writer: PythonWriter, i: bc.CallFunction | bc.TailCall) -> str:
    """Return what a call hands to the machine, as text."""
    arguments = writer.operand(i.args)
    return arguments if isinstance(i.callee, str) else f"{writer.name(i.callee)}, {arguments}"


def _filling(made: Callable[..., Any], buffers: OutputBuffers) -> Callable[..., Any]:
    """Return a program that puts results where its caller wants them; ``made`` makes it, at the
    first run.
    """
    run: Callable[[list[torch.Tensor]], Any] | None = None

    def fill(args: list[torch.Tensor], into: Sequence[torch.Tensor | None]) -> Any:
        nonlocal run
        if run is None:
            run = made(buffers)
        buffers.use(into)
        try:
            return run(args)
        finally:
            buffers.clear()

    return fill
