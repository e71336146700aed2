"""A straight-line program written out as one Python function.

A small kernel runs for a microsecond or two, and a training step has hundreds: what Python does
between two of them counts. A function that names its values, and in which each kernel, constant and
allocator is a global, takes a third less than a loop over steps that look registers up. Of

    r2 = new float32[2, 8]
    k0(r0, r1; r2)
    r3 = view r2 as float32[16]
    release r2

it makes ``a2()``, ``k0(r0, r1, r2)``, ``view(r2, *v3)`` and ``r2 = None``. The text is made of the
numbers of registers and kernels alone, so no text of a file or a user is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._C._dynamo import guards

from meta.base.errors import MetaError
from meta.base.source import Span
from meta.ir import TensorType
from meta.runtime.allocate import allocator, compact_strides
from meta.runtime.array_key import array_key
from meta.runtime.shards import rank_along
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block, FunctionCode, Kernel, KernelRef
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.output_buffers import Given
from meta.vm.eager.kernel_contracts import FirstRun
from meta.vm.eager.launch_checks import looker
from meta.vm.run.steps import SITES, Registers, guard, plain_step

Run = Callable[[list[torch.Tensor]], Any]
Site = tuple[Kernel, "Span | None"]

# A view past torch's dispatcher, as inductor's code has them: 0.7 us where `view` takes 1.6.
_view = guards._reinterpret_tensor  # type: ignore[attr-defined]


def written_out(
    program: BoundProgram,
    template: Registers,
    shared: frozenset[bc.Register],
    constants: frozenset[int] | None,
    given: Given | None = None,
) -> Run:
    """Return the entry of a program, one block, as a function of its arguments, which are compact.

    template: registers with the values that are the same at every run. shared: arguments in whose
    memory the program, or who has its results, may write. constants: addresses that kernels may not
    write to; None: none would. given: tensors for results that a caller may give.
    """
    code = program.code
    function = code.functions[code.entry]
    (block,) = function.blocks
    shared |= _returned_twice(block)
    writer = _Writer(program, function, template, shared, constants, given)
    return writer.function_of(block)


def _returned_twice(block: Block) -> frozenset[bc.Register]:
    """Return the registers whose memory may be that of several results."""
    roots: dict[bc.Register, frozenset[bc.Register]] = {}
    for i in block:
        if isinstance(i, bc.ViewTensor | bc.OwnShard | bc.Move | bc.GetItem):
            sources = i.reads
            roots[i.out] = frozenset().union(*(roots.get(r, frozenset({r})) for r in sources))
    found = Counter(root for r in block[-1].reads for root in roots.get(r, frozenset({r})))
    return frozenset(root for root, count in found.items() if count > 1)


@dataclass
class _Writer:
    program: BoundProgram
    function: FunctionCode
    template: Registers
    shared: frozenset[bc.Register]
    constants: frozenset[int] | None
    given: Given | None
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(
        default_factory=lambda: {"view": _view, "place_of": rank_along, "MetaError": MetaError}
    )
    sites: dict[int, Site] = field(default_factory=dict)

    def function_of(self, block: Block) -> Run:
        params = self.function.params
        self.fixed = self.function.fixed()
        # Registers whose tensors are compact, and in whose memory no other's writes are counted.
        self.compact = set(range(params)) - self.shared
        self.allocators: dict[TensorType, str] = {}
        # By axis and size, the variable that has this rank's place.
        self.places: dict[tuple[str, int], str] = {}
        self.line("def run(args):", 0)
        if params:
            self.line(f"{', '.join(self.name(i) for i in range(params))}, = args")
        for at, i in enumerate(block):
            self.instruction(at, i)
        text = "\n".join(self.lines)
        self.names[SITES] = self.sites
        # An error does not take this for a user's file.
        name = f"{__file__}: {self.program.code.entry}"
        exec(compile(text, name, "exec"), self.names)
        run: Run = self.names.pop("run")
        return run

    def line(self, text: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + text)

    def name(self, register: bc.Register) -> str:
        """Return the name of a register: of a value that is the same at every run, a global."""
        if register not in self.fixed:
            return f"r{register:d}"
        name = f"f{register:d}"
        self.names[name] = self.template[register]
        return name

    def operand(self, operand: bc.Operand) -> str:
        if isinstance(operand, int):
            return self.name(operand)
        return f"({''.join(f'{self.operand(part)}, ' for part in operand)})"

    def known(self, prefix: str, number: int, value: Any) -> str:
        """Return the name of a global."""
        name = f"{prefix}{number:d}"
        self.names[name] = value
        return name

    def instruction(self, at: int, i: bc.Instruction) -> None:
        match i:
            case bc.Invoke():
                self.invoke(at, i)
            case bc.AllocateTensor(storage=None):
                if self.given is None or i.out not in self.given.filled:
                    self.is_compact(i.out)
                self.line(f"{self.name(i.out)} = {self.allocator(i)}()")
            case bc.ViewTensor():
                if i.out not in self.fixed:
                    self.view(i)
            case bc.OwnShard():
                self.shard(i)
            case bc.Release():
                self.line(f"{' = '.join(map(self.name, i.registers))} = None")
            case bc.Move():
                self.line(f"{self.name(i.out)} = {self.operand(i.source)}")
            case bc.GetItem():
                self.line(f"{self.name(i.out)} = {self.name(i.source)}[{i.index:d}]")
            case bc.CheckIndices():
                look = self.known("c", at, looker(i.bounds, i.span))
                self.line(f"{look}({self.name(i.source)})")
            case bc.Return():
                self.line(f"return {self.operand(i.value)}")
            case _ if (step := plain_step(i, str(self.program.device))) is not None:
                self.step(at, i, self.known("s", at, step))

    def is_compact(self, *fresh: bc.Register) -> None:
        """Note registers of tensors in memory of their own."""
        self.compact.update(r for r in fresh if r not in self.shared)

    def step(self, at: int, i: bc.Instruction, step: str) -> None:
        """Run a step on the registers that it reads."""
        reads = ", ".join(f"{r:d}: {self.name(r)}" for r in dict.fromkeys(i.reads))
        self.line(f"regs = {{{reads}}}")
        self.line(f"{step}(regs)")
        for r in i.results:
            self.line(f"{self.name(r)} = regs[{r:d}]")
        self.line("regs = None")

    def allocator(self, i: bc.AllocateTensor) -> str:
        name = self.allocators.get(i.type)
        if name is None:
            key = array_key(i.type.static_shape, i.type.dtype, self.program.device)
            name = self.known("a", len(self.allocators), allocator(key))
            self.allocators[i.type] = name
        if self.given is not None and i.out in self.given.filled:
            return self.known("o", i.out, self.given.allocator(i.out, self.names[name]))
        return name

    def view(self, i: bc.ViewTensor) -> None:
        shape, out, source = i.type.static_shape, self.name(i.out), self.name(i.source)
        if i.source not in self.compact:  # torch looks whether it is, and counts writes to both
            self.line(f"{out} = {source}.view({self.known('v', i.out, shape)})")
            return
        self.compact.add(i.out)
        strides = compact_strides(shape)
        known = self.known("v", i.out, shape), self.known("w", i.out, strides)
        self.line(f"{out} = view({source}, {known[0]}, {known[1]}, 0)")

    def shard(self, i: bc.OwnShard) -> None:
        """Take a part of a tensor: which one the mesh says, once a run."""
        (count,), out, source = i.type.static_shape, self.name(i.out), self.name(i.source)
        place = self.places.get((i.over, i.size))
        if place is None:
            place = self.places[i.over, i.size] = f"place{len(self.places):d}"
            axis = self.known("axis", len(self.places), (i.over, i.size))
            self.line(f"{place} = place_of(*{axis})")
        self.line(f"{out} = {source}.view(-1).narrow(0, {place} * {count:d}, {count:d})")

    def invoke(self, at: int, i: bc.Invoke) -> None:
        kernel = self.program.code.kernels[i.kernel]
        launched = self.program.kernels[i.kernel].run
        run = self.known("k", i.kernel, launched)
        if isinstance(launched, FirstRun):
            launched.after.append(partial(self.names.__setitem__, run))
        if not i.fills and kernel.dialect:  # else an eager call, which may return a view
            self.is_compact(*i.outs)
        inputs = [self.name(r) for r in i.args]
        outs = [self.name(r) for r in i.outs]
        # An error of a kernel whose types are inferred when it runs names the user's line.
        is_located = isinstance(kernel, KernelRef) and not kernel.is_static
        is_located |= bool(i.written) and self.constants is not None
        depth = 1
        if is_located and i.span is not None:
            self.line("try:")
            depth = 2
        if i.written and self.constants is not None:
            check = self.known("g", at, guard(self.constants, kernel.name))
            self.line(f"{check}({', '.join(self.name(r) for r in i.written)})", depth)
        if i.fills:
            self.line(f"{run}({', '.join([*inputs, *outs])})", depth)
            self.launches(i)
        elif len(outs) == 1:
            self.line(f"result = {run}({', '.join(inputs)})", depth)
            self.launches(i)
            self.line(
                f"{outs[0]} = result[0] if result.__class__ is tuple else result; result = None",
                depth,
            )
        else:
            results = f"{', '.join(outs)} = " if outs else ""
            self.line(f"{results}{run}({', '.join(inputs)})", depth)
            self.launches(i)
        if depth == 2:
            self.line("except MetaError as error:")
            self.line(f"error.span = {self.known('l', at, i.span)}", 2)
            self.line("raise", 2)

    def launches(self, i: bc.Invoke) -> None:
        """Note what the last line launches."""
        self.sites[len(self.lines)] = self.program.code.kernels[i.kernel], i.span
