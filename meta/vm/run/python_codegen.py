"""The instructions of a function as Python functions, bound to kernels and memory.

A small kernel runs for a microsecond or two, and a training step has hundreds: what Python does
between two of them counts. A function that names its values, and in which each kernel, constant and
allocator is a global, takes a third less than a loop over closures that look registers up. Of

    r2 = new float32[2, 8]
    k0(r0, r1; r2)
    r3 = view r2 as float32[16]
    release r2

it makes ``r2 = a0()``, ``k0(r0, r1, r2)``, ``r3 = view(r2, v3, w3, 0)`` and ``r2 = None``. What the
machine runs between two decisions, and a region of a CUDA graph, works on a list of registers:
``regs[2] = a0()``. The text is made of the numbers of registers and kernels alone, so no text of a
file or a user is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

import torch
from torch._C._dynamo import guards

from meta.base.errors import IRError, MetaError
from meta.base.source import Span
from meta.ir import PRIMITIVES, TensorType
from meta.runtime.allocate import allocator, compact_strides, storage_address
from meta.runtime.array_key import array_key
from meta.runtime.placement import rank_along
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block, FunctionCode, KernelRef
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.launch_sites import SITES, LaunchSite
from meta.vm.compiler.output_buffers import OutputBuffers
from meta.vm.eager.kernel_contracts import FirstRun
from meta.vm.eager.launch_checks import looker

# A view past torch's dispatcher, as inductor's code has them: 0.7 us where `view` takes 1.6.
_view = guards._reinterpret_tensor  # type: ignore[attr-defined]

# CPython has the frames of functions in chunks of 16 KiB. A call whose frame is the first one of a
# chunk maps it, and returning unmaps it: 7 us. Where a program's own frame ends just before the end
# of a chunk, each of its launches is such a call. A frame that is larger than a chunk begins one of
# its own, twice as large, in which there is room for what it calls: 8 us, once a run.
ROOMY_FRAME, MANY_LAUNCHES = 2048, 100
"""Words of such a frame; launches of a program from which on it has one."""


@dataclass(slots=True)
class Closure:
    """A function value of a running program: what the machine runs, and its first arguments."""

    routine: Any
    captured: tuple[Any, ...]


def returned_twice(block: Block) -> frozenset[bc.Register]:
    """Return the registers whose memory may be that of several results."""
    roots: dict[bc.Register, frozenset[bc.Register]] = {}
    for i in block:
        if isinstance(i, bc.ViewTensor | bc.OwnShard | bc.Move | bc.GetItem):
            sources = i.reads
            roots[i.out] = frozenset().union(*(roots.get(r, frozenset({r})) for r in sources))
    found = Counter(root for r in block[-1].reads for root in roots.get(r, frozenset({r})))
    return frozenset(root for root, count in found.items() if count > 1)


class PythonWriter:
    """Writes Python functions of the instructions of one function of a program.

    template: registers with the values that are the same at every run. sites: by the id of an
    instruction that launches a kernel. routines: by name, what a closure calls.
    constants: addresses that kernels may not write to; None: none would. buffers: tensors for
    results that a caller may give. keys: where random keys are that are drawn already.
    shared: arguments in whose memory the program, or who has its results, may write. With it,
    registers are local variables, and arguments are compact; None: registers are a list's elements.
    """

    def __init__(
        self,
        program: BoundProgram,
        function: FunctionCode,
        template: list[Any],
        sites: Mapping[int, LaunchSite],
        *,
        routines: Mapping[str, Any] = MappingProxyType({}),
        constants: frozenset[int] | None = None,
        buffers: OutputBuffers | None = None,
        keys: Mapping[bc.Register, torch.Tensor] = MappingProxyType({}),
        shared: frozenset[bc.Register] | None = None,
    ) -> None:
        self.program, self.function, self.template = program, function, template
        self.sites, self.routines, self.constants = sites, routines, constants
        self.buffers, self.keys, self.shared = buffers, keys, shared
        self.local = shared is not None
        self.fixed = function.fixed()
        # Registers whose tensors are compact, and in whose memory no other's writes are counted.
        self.compact = set() if shared is None else set(range(function.params)) - shared
        self.allocators: dict[TensorType, str] = {}
        # By axis and size, the variable that has this rank's position.
        self.ranks: dict[tuple[str, int], str] = {}
        self.lines: list[str] = []
        self.depth = 0
        self.line_sites: dict[int, LaunchSite] = {}
        self.names: dict[str, Any] = {
            "view": _view,
            "rank_along": rank_along,
            "closure": Closure,
            "MetaError": MetaError,
            SITES: self.line_sites,
        }

    # Functions.

    def begin(self, name: str) -> None:
        """Begin a function of a list: of registers, or of arguments."""
        self.depth = 0
        self.line(f"def {name}({'args' if self.local else 'regs'}):")
        self.depth = 1
        self.ranks.clear()
        if self.local and self.function.params:
            self.line(f"{', '.join(map(self.name, range(self.function.params)))}, = args")

    def end(self, text: str = "None", dead: Sequence[bc.Register] = ()) -> None:
        """End it with what it returns; ``dead`` registers are released before."""
        if dead:
            self.line(f"value = {text}")
            self.release(dead)
            text = "value"
        self.line(f"return {text}")

    def functions(self) -> dict[str, Any]:
        """Return the functions that were written by their names, in their globals."""
        text = "\n".join(self.lines)
        # An error does not take this for a user's file.
        name = f"{__file__}: {self.program.code.entry}"
        exec(compile(text, name, "exec"), self.names)
        if len(self.line_sites) >= MANY_LAUNCHES:
            for f in self.names.values():
                if isinstance(f, FunctionType) and f.__code__.co_filename == name:
                    f.__code__ = f.__code__.replace(co_stacksize=ROOMY_FRAME)
        return self.names

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def located(self, span: Span | None) -> Iterator[None]:
        """Let an error of the lines that are written in this block name the user's line."""
        if span is None:
            yield
            return
        self.line("try:")
        self.depth = 2
        yield
        self.depth = 1
        self.line("except MetaError as error:")
        self.line(f"    error.span = {self.known('l', span)}")
        self.line("    raise")

    # Names.

    def name(self, register: bc.Register) -> str:
        """Return the name of a register: of a value that is the same at every run, a global."""
        if register not in self.fixed:
            return f"r{register:d}" if self.local else f"regs[{register:d}]"
        name = f"f{register:d}"
        self.names[name] = self.template[register]
        return name

    def operand(self, operand: bc.Operand) -> str:
        if isinstance(operand, int):
            return self.name(operand)
        return f"({''.join(f'{self.operand(part)}, ' for part in operand)})"

    def known(self, prefix: str, value: Any, number: int | None = None) -> str:
        """Return the name of a global: a new one without a number."""
        name = f"{prefix}{len(self.names) if number is None else number:d}"
        self.names[name] = value
        return name

    # Instructions.

    def instructions(self, block: Sequence[bc.Instruction]) -> None:
        """Write instructions, none of which decides what comes next."""
        for i in block:
            self.instruction(i)

    def instruction(self, i: bc.Instruction) -> None:
        match i:
            case bc.Invoke():
                self.invoke(i)
            case bc.AllocateTensor(storage=None) if i.out not in self.keys:
                if self.buffers is None or i.out not in self.buffers.filled:
                    self.is_compact(i.out)
                self.line(f"{self.name(i.out)} = {self.allocator(i)}()")
            case bc.ViewTensor() if i.out not in self.fixed:
                self.view(i)
            case bc.OwnShard():
                self.shard(i)
            case bc.Release():
                self.release(i.registers)
            case bc.Move():
                self.line(f"{self.name(i.out)} = {self.operand(i.source)}")
            case bc.GetItem():
                self.line(f"{self.name(i.out)} = {self.name(i.source)}[{i.index:d}]")
            case bc.Extent():
                self.line(f"{self.name(i.out)} = {self.name(i.source)}.shape[{i.axis:d}]")
            case bc.Check():
                check = self.known("c", extents_check(i.type, i.span))
                self.line(f"{check}({self.name(i.source)})")
            case bc.CheckIndices():
                look = self.known("c", looker(i.bounds, i.span))
                self.line(f"{look}({self.name(i.source)})")
            case bc.MakeClosure():
                routine = self.known("m", self.routines[i.function])
                self.line(f"{self.name(i.out)} = closure({routine}, {self.operand(i.captured)})")
            case bc.RunPrimitive():
                run = self.known("p", primitive(i, str(self.program.device)))
                with self.located(None if i.as_tensor else i.span):
                    arguments = ", ".join(map(self.operand, i.operands))
                    self.line(f"{self.name(i.out)} = {run}({arguments})")

    def is_compact(self, *fresh: bc.Register) -> None:
        """Note registers of tensors in memory of their own."""
        if self.shared is not None:
            self.compact.update(r for r in fresh if r not in self.shared)

    def release(self, registers: Sequence[bc.Register]) -> None:
        """Forget values."""
        self.line(f"{' = '.join(map(self.name, registers))} = None")

    def run_on_registers(self, step: Callable[[list[Any]], None]) -> None:
        """Run what works on the list of registers."""
        self.line(f"{self.known('g', step)}(regs)")

    def allocator(self, i: bc.AllocateTensor) -> str:
        name = self.allocators.get(i.type)
        if name is None:
            key = array_key(i.type.static_shape, i.type.dtype, self.program.device)
            name = self.known("a", allocator(key), len(self.allocators))
            self.allocators[i.type] = name
        if self.buffers is not None and i.out in self.buffers.filled:
            return self.known("o", self.buffers.allocator(i.out, self.names[name]), i.out)
        return name

    def view(self, i: bc.ViewTensor) -> None:
        shape, out, source = i.type.static_shape, self.name(i.out), self.name(i.source)
        known = self.known("v", shape, i.out)
        if i.source not in self.compact:  # torch looks whether it is, and counts writes to both
            self.line(f"{out} = {source}.view({known})")
            return
        self.compact.add(i.out)
        strides = self.known("w", compact_strides(shape), i.out)
        self.line(f"{out} = view({source}, {known}, {strides}, 0)")

    def shard(self, i: bc.OwnShard) -> None:
        """Take a part of a tensor: which one the mesh says, once a run."""
        (count,), out, source = i.type.static_shape, self.name(i.out), self.name(i.source)
        rank = self.ranks.get((i.over, i.size))
        if rank is None:
            rank = self.ranks[i.over, i.size] = f"rank{len(self.ranks):d}"
            self.line(f"{rank} = rank_along(*{self.known('axis', (i.over, i.size))})")
        self.line(f"{out} = {source}.view(-1).narrow(0, {rank} * {count:d}, {count:d})")

    def invoke(self, i: bc.Invoke) -> None:
        outs = [self.name(r) for r in i.outs]
        if i.outs and i.outs[0] in self.keys:
            if i.outs[0] not in self.fixed:
                self.line(f"{outs[0]} = {self.known('d', self.keys[i.outs[0]], i.outs[0])}")
            return
        kernel = self.program.code.kernels[i.kernel]
        launched = self.program.kernels[i.kernel].run
        run = self.known("k", launched, i.kernel)
        if isinstance(launched, FirstRun):
            launched.after.append(partial(self.names.__setitem__, run))
        if not i.fills and kernel.dialect:  # else an eager call, which may return a view
            self.is_compact(*i.outs)
        guarded = bool(i.written) and self.constants is not None
        # An error of a kernel whose types are inferred when it runs names the user's line.
        is_located = guarded or (isinstance(kernel, KernelRef) and not kernel.is_static)
        with self.located(i.span if is_located else None):
            if guarded:
                assert self.constants is not None
                check = self.known("g", constants_check(self.constants, kernel.name))
                self.line(f"{check}({', '.join(map(self.name, i.written))})")
            inputs = ", ".join([*map(self.name, i.args), *(outs if i.fills else ())])
            targets = ["result"] if len(outs) == 1 else outs
            results = "" if i.fills or not outs else f"{', '.join(targets)} = "
            self.line(f"{results}{run}({inputs})")
            self.line_sites[len(self.lines)] = self.sites[id(i)]
            if results and len(outs) == 1:
                value = "result[0] if result.__class__ is tuple else result"
                self.line(f"{outs[0]} = {value}; result = None")


def primitive(i: bc.RunPrimitive, device: str) -> Callable[..., Any]:
    """Return what a primitive makes of the values of its operands."""
    run = partial(PRIMITIVES[i.name].run, *i.details)
    if not i.as_tensor:
        return run
    return lambda *values: torch.tensor(run(*values), device=device)


def extents_check(type_: TensorType, span: Span | None) -> Callable[[torch.Tensor], None]:
    """Return what raises IRError for a tensor without the known extents of a type."""
    known = tuple((axis, d) for axis, d in enumerate(type_.shape) if isinstance(d, int))

    def check(tensor: torch.Tensor) -> None:
        shape = tensor.shape
        if len(shape) != type_.ndim or any(shape[axis] != extent for axis, extent in known):
            raise IRError(
                "a value does not have the extents that the program says",
                expected=type_,
                found=type_.with_shape(tuple(shape)),
                span=span,
            )

    return check


def constants_check(constants: frozenset[int], op: str) -> Callable[..., None]:
    """Return what raises IRError where ``op`` would write to memory of constants."""

    def check(*written: torch.Tensor) -> None:
        if any(storage_address(t) in constants for t in written):
            raise IRError("this writes to a constant of the program", op=op)

    return check
