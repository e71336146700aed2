"""From a dispatched straight-line program to a flat list of bound callables.

Every tensor is a register. Tuples, fields and written arguments are resolved here and cost nothing
at run time. What a kernel writes lives where `plan_memory` has put it; without a place in its plan
it is allocated per call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.base.errors import IRError
from meta.dialect.core import OpEnv, compile_together
from meta.dialect.core.catalog import DIALECTS
from meta.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from meta.op.core import Op, View
from meta.passes.call_of import base_op
from meta.passes.dispatch import kernel_of, prepared
from meta.passes.fuse_tvm import FUSED
from meta.passes.liveness import type_bytes
from meta.passes.plan_memory import ARENA, OFFSETS
from meta.runtime.ndarray import ArrayKey, array_key
from meta.vm.eager import allocator

Registers = list[Any]
Step = Callable[[Registers], None]


@dataclass(slots=True)
class Register:
    """One tensor (or run-time number) of the program.

    ``kind``: "input"; "constant" with its ``value``; "written" by a kernel; "returned" by a kernel;
    "view" of ``base``. ``last`` is the last instruction that uses it.
    """

    kind: str
    type: TensorType | None
    last: int
    base: int = -1
    value: Any = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One kernel (or, with ``env`` None, one view) from registers to registers."""

    env: OpEnv | None
    sources: tuple[int, ...]
    outs: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result is after a run, and what array it makes."""

    register: int
    key: ArrayKey


@dataclass(frozen=True, slots=True)
class Code:
    """A program ready to run.

    ``registers`` as they are before a run, with gaps for inputs and temporaries; ``result`` a
    `Place` or a nested tuple of them; ``written`` the inputs that are written in place;
    ``kernels`` the dialect operators in order of execution.
    """

    registers: Registers
    steps: tuple[Step, ...]
    result: Any
    written: frozenset[int]
    kernels: tuple[str, ...]
    arena_bytes: int


def emit(module: Module, device: Device) -> Code:
    """Return the code of a module's main on one device. IRError for control flow, which this
    machine does not run.
    """
    return _Emitter(module, device).code()


class _Emitter:
    def __init__(self, module: Module, device: Device) -> None:
        self.functions, self.main, self.device = module.functions, module.main, device
        attrs = module.main.attrs
        self.offsets = {(i, j): offset for i, j, offset in attrs.get(OFFSETS, ())}
        self.arena = torch.empty(attrs.get(ARENA, 0), dtype=torch.uint8, device=str(device))
        self.registers: list[Register] = []
        self.instructions: list[Instruction] = []
        # What an atom stands for: a register index, or a nested tuple of them.
        self.env: dict[Expr, Any] = {}
        # Inputs that an operator writes in place.
        self.written: set[int] = set()

    def code(self) -> Code:
        for param in self.main.params:
            if not isinstance(param.type, TensorType):
                raise IRError(
                    "a parameter of main must be a tensor", found=f"%{param.name}: {param.type}"
                )
            self.env[param] = self.new("input", param.type)
        for number, binding in enumerate(self.main.body.bindings):
            self.env[binding.var] = self.value(number, binding)
        result = self.atom(self.main.body.result)
        leaving = self.bases(_flat(result))
        for index in leaving:
            self.use(index)
        compile_together(i.env for i in self.instructions if i.env is not None)
        dying = self.dying(leaving)
        steps = [s for at, i in enumerate(self.instructions) for s in self.steps_of(i, dying[at])]
        result = self.without_constants(result, steps)
        kernels = tuple(i.name for i in self.instructions if i.env)
        return Code(
            [r.value for r in self.registers],
            tuple(steps),
            self.places(result),
            frozenset(self.written),
            kernels,
            self.arena.numel(),
        )

    # From bindings to instructions.

    def new(self, kind: str, type_: TensorType | None, base: int = -1, value: Any = None) -> int:
        self.registers.append(Register(kind, type_, len(self.instructions), base, value))
        return len(self.registers) - 1

    def use(self, index: int) -> None:
        """Note that a register, and the buffer that it is a view of, is read by the next
        instruction.
        """
        while index >= 0:
            self.registers[index].last = len(self.instructions)
            index = self.registers[index].base

    def write(self, op: Op, index: int) -> None:
        """Note that an operator writes a register in place; IRError if that is a constant."""
        while self.registers[index].base >= 0:
            index = self.registers[index].base
        if self.registers[index].kind == "constant":
            raise IRError("this writes to a constant of the program", op=op.name)
        if self.registers[index].kind == "input":
            self.written.add(index)

    def bases(self, indices: list[int]) -> set[int]:
        """Return the registers and the buffers that they are views of."""
        found = set()
        for index in indices:
            while index >= 0:
                found.add(index)
                index = self.registers[index].base
        return found

    def atom(self, atom: Any) -> Any:
        if isinstance(atom, Tuple):
            return tuple(self.atom(f) for f in atom.fields)
        if isinstance(atom, Constant) and atom not in self.env:
            value = atom.data.to(str(self.device)).contiguous()
            self.env[atom] = self.new("constant", atom.type, value=value)
        if not isinstance(atom, Expr):  # a run-time number
            return self.new("constant", None, value=atom)
        return self.env[atom]

    def written_to(self, number: int, output: int, type_: TensorType) -> int:
        """Return the register of what a kernel writes, at its place in the arena if it has one."""
        offset = self.offsets.get((number, output))
        value = None if offset is None else _carve(self.arena, offset, type_)
        return self.new("written", type_, value=value)

    def value(self, number: int, binding: Binding) -> Any:
        value = binding.value
        if isinstance(value, TupleGetItem):
            return self.atom(value.value)[value.index]
        if isinstance(value, Var | Constant | Tuple):
            return self.atom(value)
        if isinstance(value, Call) and base_op(value.callee) is not None:
            return self.call(number, value)
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            function = self.functions[value.callee.name]
            if FUSED in function.attrs:
                return self.fused(number, value, value.callee.name, function)
        raise IRError(
            "this machine runs straight-line programs",
            found=type(value).__name__,
            hint="run it under the interpreter: call the model",
            span=binding.span,
        )

    def call(self, number: int, call: Call) -> Any:
        op = base_op(call.callee)
        assert op is not None
        values = prepared(op, call, self.device)
        if values.callee is None:
            raise IRError("a value that is known while tracing is no operator call", op=op.name)
        arguments = [
            () if slot.kind == "attribute" or argument is None else self.atom(argument)
            for slot, argument in zip(op.schema.slots, call.args, strict=True)
        ]
        sources = tuple(_flat(tuple(arguments)))
        for index in sources:
            self.use(index)
        for index in _flat(tuple(arguments[slot] for slot in op.schema.written)):
            self.write(op, index)
        if isinstance(values.out, View):
            source = self.registers[sources[0]].value
            seen = None if source is None else source.view(values.out.type.static_shape)
            out = self.new("view", values.out.type, base=sources[0], value=seen)
            self.instructions.append(Instruction(None, sources[:1], (out,)))
            return out
        env = kernel_of(call.callee, values)
        outs = tuple(
            self.new("returned", t) if env.allocates else self.written_to(number, j, t)
            for j, t in enumerate(values.outputs)
        )
        name = env.dialect_op.name if env.dialect_op else op.name
        self.instructions.append(Instruction(env, sources, outs, name))
        return outs[0] if isinstance(values.out, TensorType) else outs

    def fused(self, number: int, call: Call, name: str, function: Function) -> int:
        """Emit the one kernel of a fused function."""
        dialect = DIALECTS[function.attrs[FUSED]]
        assert dialect.fuse is not None
        sources = tuple(_flat(tuple(self.atom(a) for a in call.args)))
        for index in sources:
            self.use(index)
        assert isinstance(function.result_type, TensorType)
        out = self.written_to(number, 0, function.result_type)
        env = dialect.fuse(function, self.device)
        self.instructions.append(Instruction(env, sources, (out,), f"{dialect.name}.{name}"))
        return out

    # From instructions to steps.

    def dying(self, leaving: set[int]) -> list[tuple[int, ...]]:
        """Return by instruction the temporaries that nobody needs after it."""
        dying: list[list[int]] = [[] for _ in self.instructions]
        for i, r in enumerate(self.registers):
            if r.kind in ("returned", "view") and r.value is None and i not in leaving:
                dying[r.last].append(i)
        return [tuple(d) for d in dying]

    def without_constants(self, result: Any, steps: list[Step]) -> Any:
        """Return the result with every constant replaced by a copy, which the caller may write."""
        if isinstance(result, tuple):
            return tuple(self.without_constants(r, steps) for r in result)
        if not any(self.registers[i].kind == "constant" for i in self.bases([result])):
            return result
        copy = self.new("returned", self.registers[result].type)
        steps.append(_copy_step(result, copy))
        return copy

    def places(self, result: Any) -> Any:
        """Return the places of the results: a nested tuple, or one."""
        if isinstance(result, tuple):
            return tuple(self.places(r) for r in result)
        return Place(result, self.key(result))

    def steps_of(self, instruction: Instruction, dying: tuple[int, ...]) -> list[Step]:
        steps = []
        if instruction.env is None:
            out = instruction.outs[0]
            if self.registers[out].value is None:
                steps.append(_view_step(instruction.sources[0], out, _shape(self.registers[out])))
        else:
            steps.append(self.kernel_step(instruction))
        return [*steps, _release_step(dying)] if dying else steps

    def kernel_step(self, instruction: Instruction) -> Step:
        env, sources, outs = instruction.env, instruction.sources, instruction.outs
        assert env is not None
        run = env.run
        if env.allocates:
            return _returning_step(run, sources, outs)
        fixed = [self.registers[i].value for i in (*sources, *outs)]
        if all(v is not None for v in fixed):
            return _fixed_step(run, tuple(fixed))
        missing = tuple(o for o in outs if self.registers[o].value is None)
        makers = tuple(allocator(self.key(o)) for o in missing)
        return _writing_step(run, (*sources, *outs), tuple(zip(missing, makers, strict=True)))

    def key(self, index: int) -> ArrayKey | None:
        """Return the key of a register's array, None if its extents are known at run time only."""
        type_ = self.registers[index].type
        assert type_ is not None
        if not type_.is_static and self.registers[index].kind == "returned":
            return None
        return array_key(type_.static_shape, type_.dtype, self.device)


def _flat(tree: Any) -> list[int]:
    return [i for t in tree for i in _flat(t)] if isinstance(tree, tuple) else [tree]


def _shape(register: Register) -> tuple[int, ...]:
    assert register.type is not None
    return register.type.static_shape


def _carve(arena: torch.Tensor, offset: int, type_: TensorType) -> torch.Tensor:
    part = arena[offset : offset + type_bytes(type_)]
    return part.view(TO_TORCH[type_.dtype]).view(type_.static_shape)


# Steps. Small arities are written out: a star call costs as much as a small kernel's launch.


def _fixed_step(run: Callable[..., Any], values: tuple[Any, ...]) -> Step:
    def step(_: Registers) -> None:
        run(*values)

    return step


def _writing_step(
    run: Callable[..., Any], places: tuple[int, ...], fresh: tuple[tuple[int, Any], ...]
) -> Step:
    if fresh:

        def allocating(regs: Registers) -> None:
            for out, make in fresh:
                regs[out] = make()
            run(*[regs[i] for i in places])

        return allocating
    if len(places) == 2:
        a, b = places
        return lambda regs: run(regs[a], regs[b])
    if len(places) == 3:
        a, b, c = places
        return lambda regs: run(regs[a], regs[b], regs[c])
    return lambda regs: run(*[regs[i] for i in places])


def _returning_step(
    run: Callable[..., Any], sources: tuple[int, ...], outs: tuple[int, ...]
) -> Step:
    if len(outs) == 1:
        out = outs[0]

        def one(regs: Registers) -> None:
            result = run(*[regs[i] for i in sources])
            regs[out] = result[0] if result.__class__ is tuple else result

        return one

    def several(regs: Registers) -> None:
        result = run(*[regs[i] for i in sources]) or ()
        for out, value in zip(outs, result, strict=True):
            regs[out] = value

    return several


def _view_step(source: int, out: int, shape: tuple[int, ...]) -> Step:
    def step(regs: Registers) -> None:
        regs[out] = regs[source].view(shape)

    return step


def _copy_step(source: int, out: int) -> Step:
    def step(regs: Registers) -> None:
        regs[out] = regs[source].clone()

    return step


def _release_step(indices: tuple[int, ...]) -> Step:
    def step(regs: Registers) -> None:
        for i in indices:
            regs[i] = None

    return step
