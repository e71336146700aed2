"""From code and kernels to what the machine runs.

A straight-line program becomes one flat list of steps over one set of registers, in which
everything that is the same at every run is in place already. Other programs become `Routine`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.base.source import Span
from meta.ir import type_bytes
from meta.runtime.allocate import allocator
from meta.runtime.array_key import array_key
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block, FunctionCode, KernelRef
from meta.vm.compiler.code_analysis import CONSTANT, CodeSummary, summaries
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.output_buffers import Given, result_places
from meta.vm.graphs.capture import Graphs
from meta.vm.graphs.link_regions import Grapher, escaping
from meta.vm.run.machine import Enter, Fork, Goto, Leave, Routine, RoutineClosure, Segment, run
from meta.vm.run.python_codegen import Run, written_out
from meta.vm.run.rank_consistency import together
from meta.vm.run.steps import (
    Registers,
    Step,
    buffer,
    filling_step,
    fixed_step,
    guarded,
    located,
    marked,
    plain_step,
    reader,
    returning_step,
    setting,
)

MEMORY_HINT = (
    "a smaller batch; compile(..., memory_budget=BYTES), which computes values anew instead of "
    "keeping them; fewer arrays and programs that are still referred to"
)


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


def link(program: BoundProgram, graphs: Graphs | None = None) -> Linked:
    """Link a program with its kernels; with ``graphs``, what can be recorded will be."""
    code = program.code
    found = summaries(code)
    entry = found[code.entry]
    addresses = frozenset(buffer(c) for c in code.constants if isinstance(c, torch.Tensor))
    function = code.functions[code.entry]
    guards = any(CONSTANT in summary.written for summary in found.values())
    if guards and graphs is not None:
        graphs.reasons["before each write it is looked whether it is one to a constant"] = None
        graphs = None
    instructions = [i for f in code.functions.values() for i in f.instructions()]
    if graphs is not None and any(isinstance(i, bc.CheckIndices) for i in instructions):
        graphs.reasons["META_CHECK_INDICES looks at indices before kernels run"] = None
        graphs = None
    linker = _Linker(program, addresses, guards, graphs)
    storages = [i.size for i in instructions if isinstance(i, bc.AllocateStorage)]
    jumps = bc.CallFunction | bc.MakeClosure | bc.Branch | bc.Jump | bc.TailCall
    is_straight = not any(isinstance(i, jumps) for i in function.instructions())
    linked = Linked(
        linker.straight(function, entry) if is_straight else linker.general(),
        frozenset(r for r in entry.written if r >= 0),
        frozenset(r for r in entry.returned if r >= 0),
        addresses if CONSTANT in entry.returned else frozenset(),
        sum(storages),
        linker.fill,
    )
    return together(program, linked, graphs)


class _Linker:
    def __init__(
        self, program: BoundProgram, addresses: frozenset[int], guards: bool, graphs: Graphs | None
    ) -> None:
        self.program = program
        self.code, self.kernels, self.device = program.code, program.kernels, program.device
        self.grapher = None if graphs is None else Grapher(program, graphs)
        # Where constants lie; whether there may be a kernel that writes one.
        self.addresses, self.guards = addresses, guards
        self.routines = {n: Routine(n, f.params) for n, f in self.code.functions.items()}
        self.given: Given | None = None
        self.fill: Callable[..., Any] | None = None

    def straight(
        self, function: FunctionCode, summary: CodeSummary
    ) -> Callable[[list[torch.Tensor]], Any]:
        """Return a straight-line function as a function of its arguments."""
        template = self.template(self.code.entry, function)
        (block,) = function.blocks
        last = block[-1]
        assert isinstance(last, bc.Return)
        given = Given(result_places(block, function.params))
        if self.grapher is None:
            shared = summary.written | summary.returned
            constants = self.addresses if self.guards else None
            write = partial(written_out, self.program, template, shared, constants)
            self.fill = _filling(write, given) if given.filled else None
            return write()
        self.grapher.escaping = escaping(block)
        self.given = self.grapher.graphs.given = given
        steps = self.steps(self.code.entry, block, 0, len(block) - 1, template, function.fixed())
        read = reader(last.value)
        rest = template[function.params :]

        def execute(args: list[torch.Tensor]) -> Any:
            registers = [*args, *rest]
            for step in steps:
                step(registers)
            return read(registers)

        self.fill = _filling(lambda _: execute, given) if given.places else None
        return execute

    def general(self) -> Callable[[list[torch.Tensor]], Any]:
        """Return the entry, run on the machine."""
        for name, function in self.code.functions.items():
            self.routine(self.routines[name], function)
        entry = self.routines[self.code.entry]
        return lambda args: run(entry, args)

    # What is in the registers of a frame before it runs.

    def template(self, name: str, function: FunctionCode) -> Registers:
        """Return registers with constants in place, and tensors in memory that is allocated now."""
        registers: Registers = [None] * function.registers
        fixed = function.fixed()
        keys = {} if self.grapher is None else self.grapher.keys(name)
        for i in function.instructions():
            match i:
                case bc.LoadConstant():
                    registers[i.out] = self.code.constants[i.constant]
                case bc.AllocateStorage():
                    registers[i.out] = self.arena(i.size)
                case bc.AllocateTensor() if i.out in fixed and i.out in keys:
                    registers[i.out] = keys[i.out]
                case bc.AllocateTensor() if i.storage is not None:
                    part = registers[i.storage][i.offset : i.offset + type_bytes(i.type)]
                    registers[i.out] = part.view(TO_TORCH[i.type.dtype]).view(i.type.static_shape)
                case bc.ViewTensor() if i.out in fixed:
                    registers[i.out] = registers[i.source].view(i.type.static_shape)
        if self.grapher is not None:
            self.grapher.graphs.fix(registers)
        return registers

    def arena(self, size: int) -> torch.Tensor:
        """Return a function's memory; OutOfMemory if there is not so much."""
        try:
            return torch.empty(size, dtype=torch.uint8, device=str(self.device))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            what = "the intermediate results of the program"
            failure = out_of_memory(error, self.device, what, planned=size, hint=MEMORY_HINT)
        raise failure

    # Functions.

    def routine(self, routine: Routine, function: FunctionCode) -> None:
        """Link one function; those that it calls may be linked later."""
        routine.template = self.template(routine.name, function)
        fixed = function.fixed()
        starts = [Segment() for _ in function.blocks]
        routine.start = starts[0]
        for segment, block in zip(starts, function.blocks, strict=True):
            self.segments(routine.name, segment, block, starts, routine.template, fixed)

    def segments(
        self,
        name: str,
        segment: Segment,
        block: Block,
        starts: list[Segment],
        known: Registers,
        fixed: frozenset[bc.Register],
    ) -> None:
        """Link a block: a segment up to each call, and one for the rest."""
        begin = 0
        for at, i in enumerate(block):
            if not isinstance(i, bc.CallFunction | bc.Terminator):
                continue
            segment.steps = self.steps(name, block, begin, at, known, fixed)
            begin = at + 1
            match i:
                case bc.CallFunction():
                    after, follower = block[begin], Segment()
                    released = after.registers if isinstance(after, bc.Release) else ()
                    dead = tuple(r for r in released if r != i.out)
                    if released == dead:
                        begin += bool(dead)  # that was all the release had to do
                    segment.exit = self.enter(i, i.out, follower, dead, i.span)
                    segment = follower
                case bc.TailCall():
                    segment.exit = self.enter(i)
                case bc.Branch():
                    segment.exit = Fork(i.condition, starts[i.then], starts[i.otherwise])
                case bc.Jump():
                    segment.exit = Goto(starts[i.target])
                case bc.Return():
                    segment.exit = Leave(reader(i.value))

    def enter(
        self,
        i: bc.CallFunction | bc.TailCall,
        out: bc.Register = -1,
        after: Segment | None = None,
        dead: tuple[bc.Register, ...] = (),
        span: Span | None = None,
    ) -> Enter:
        read = reader(i.args)
        if isinstance(i.callee, str):
            return Enter(self.routines[i.callee], -1, read, out, after, dead, span)
        return Enter(None, i.callee, read, out, after, dead, span)

    # Steps.

    def steps(
        self,
        name: str,
        block: Block,
        begin: int,
        end: int,
        known: Registers,
        fixed: frozenset[bc.Register],
    ) -> tuple[Step, ...]:
        """Link instructions of a block, no call; ``known``: values of registers in ``fixed``."""
        if self.grapher is None:
            return self.plain_steps(block[begin:end], known, fixed)
        link = partial(self.plain_steps, known=known, fixed=fixed)
        return self.grapher.steps(name, block, begin, end, fixed, link)

    def plain_steps(
        self,
        instructions: Sequence[bc.Instruction],
        known: Registers,
        fixed: frozenset[bc.Register],
        keys: Mapping[bc.Register, torch.Tensor] = MappingProxyType({}),
    ) -> tuple[Step, ...]:
        """Link instructions one by one; ``keys``: where random keys are that are drawn already."""
        steps: list[Step] = []
        fresh: dict[bc.Register, Callable[[], torch.Tensor]] = {}
        for i in instructions:
            match i:
                case bc.AllocateTensor(storage=None):
                    # Left to the kernel that fills it: one step for both.
                    make = allocator(array_key(i.type.static_shape, i.type.dtype, self.device))
                    fresh[i.out] = make if self.given is None else self.given.allocator(i.out, make)
                case bc.MakeClosure():
                    steps.append(_closure_step(self.routines[i.function], i.captured, i.out))
                case bc.Invoke() if i.outs and i.outs[0] in keys:
                    fresh.pop(i.outs[0], None)
                    if i.outs[0] not in fixed:
                        steps.append(setting(i.outs[0], partial(_same, keys[i.outs[0]])))
                case bc.Invoke():
                    steps.append(self.kernel_step(i, known, fresh))
                case bc.ViewTensor() if i.out in fixed:
                    pass
                case _ if (step := plain_step(i, str(self.device))) is not None:
                    steps.append(step)
        return tuple(steps)

    def kernel_step(
        self, i: bc.Invoke, known: Registers, fresh: dict[bc.Register, Callable[[], torch.Tensor]]
    ) -> Step:
        run = self.kernels[i.kernel].run
        if not i.fills:
            step = returning_step(run, i.args, i.outs)
        else:
            places = (*i.args, *i.outs)
            values = tuple(known[r] for r in places)
            if all(v is not None for v in values):
                step = fixed_step(run, values)
            else:
                mine = tuple((r, fresh.pop(r)) for r in i.outs if r in fresh)
                step = filling_step(run, places, mine)
        kernel = self.code.kernels[i.kernel]
        if isinstance(kernel, KernelRef) and not kernel.is_static:
            step = located(step, i.span)  # its types are inferred when it runs
        if i.written and self.guards:
            guard = guarded(step, i.written, self.addresses, kernel.name)
            step = located(guard, i.span)
        return marked(step, kernel, i.span)


def _filling(made: Callable[[Given], Run], given: Given) -> Callable[..., Any]:
    """Return a program that puts results where its caller wants them; ``made`` makes it, at the
    first run.
    """
    run: Run | None = None

    def fill(args: list[torch.Tensor], into: Sequence[torch.Tensor | None]) -> Any:
        nonlocal run
        if run is None:
            run = made(given)
        given.take(into)
        try:
            return run(args)
        finally:
            given.clear()

    return fill


def _same(value: torch.Tensor, _: Registers) -> torch.Tensor:
    return value


def _closure_step(routine: Routine, captured: tuple[bc.Operand, ...], out: bc.Register) -> Step:
    read = reader(captured)
    return setting(out, lambda regs: RoutineClosure(routine, read(regs)))
