"""The instructions of the machine, as plain data; ``str(instruction)`` is its line of a listing.

A register is a number within one activation of a function. An *operand* is a register or a nested
tuple of operands. A new instruction is a class here and a step in `link.py`; `reads` and `results`
are all that liveness needs of it, and `aliasing.py` has a case for those that make no new memory.
Those about data values and references are in `bytecode_data.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from meta.base.source import Span
from meta.ir import TensorType
from meta.vm.index_checks import Bounds

Register = int
Operand = Union[int, "tuple[Operand, ...]"]


def registers_of(operand: Operand) -> Iterator[Register]:
    """Yield the registers of an operand."""
    if isinstance(operand, tuple):
        for part in operand:
            yield from registers_of(part)
    else:
        yield operand


def text(operand: Operand) -> str:
    """Return an operand as text: ``r1``, ``(r1, (r2, r3))``."""
    return f"({texts(operand)})" if isinstance(operand, tuple) else f"r{operand}"


def texts(operands: tuple[Operand, ...]) -> str:
    """Return operands as text, with commas."""
    return ", ".join(map(text, operands))


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base class: by default, nothing is read and nothing results."""

    @property
    def reads(self) -> tuple[Register, ...]:
        """The registers whose values it needs."""
        return ()

    @property
    def results(self) -> tuple[Register, ...]:
        """The registers that it sets."""
        return ()


@dataclass(frozen=True, slots=True)
class Setting(Instruction):
    """Base class of what sets one register, ``out``."""

    out: Register

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)


def _callee(callee: str | Register) -> str:
    return f"@{callee}" if isinstance(callee, str) else f"r{callee}"


@dataclass(frozen=True, slots=True)
class LoadConstant(Setting):
    """``out`` is a constant of the code, a tensor or a number."""

    constant: int

    def __str__(self) -> str:
        return f"r{self.out} = constant c{self.constant}"


@dataclass(frozen=True, slots=True)
class Move(Setting):
    """``out`` is the value of an operand; of a tuple, a new tuple."""

    source: Operand

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.source))

    def __str__(self) -> str:
        return f"r{self.out} = {text(self.source)}"


@dataclass(frozen=True, slots=True)
class Field(Setting):
    """``out`` is a field of a tuple."""

    source: Register
    index: int

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"r{self.out} = r{self.source}.{self.index}"


@dataclass(frozen=True, slots=True)
class AllocateStorage(Setting):
    """``out`` is the function's memory, in bytes, which all activations use: there is never more
    than one at a time.
    """

    size: int

    def __str__(self) -> str:
        return f"r{self.out} = storage of {self.size} bytes"


@dataclass(frozen=True, slots=True)
class AllocateTensor(Setting):
    """``out`` is an uninitialised compact tensor: at an offset of a storage, or in memory of its
    own.
    """

    type: TensorType
    storage: Register | None = None
    offset: int = 0

    @property
    def reads(self) -> tuple[Register, ...]:
        return () if self.storage is None else (self.storage,)

    def __str__(self) -> str:
        if self.storage is None:
            return f"r{self.out} = new {self.type}"
        return f"r{self.out} = {self.type} in r{self.storage} at {self.offset}"


@dataclass(frozen=True, slots=True)
class View(Setting):
    """``out`` is the buffer of ``source`` with the shape of a type."""

    source: Register
    type: TensorType

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"r{self.out} = view r{self.source} as {self.type}"


@dataclass(frozen=True, slots=True)
class Extent(Setting):
    """``out`` is the extent of an axis of a tensor, a number."""

    source: Register
    axis: int

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"r{self.out} = extent {self.axis} of r{self.source}"


@dataclass(frozen=True, slots=True)
class Check(Instruction):
    """The tensor in ``source`` must have the known extents of a type: only now they are known."""

    source: Register
    type: TensorType
    span: Span | None = field(default=None, compare=False)

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"check r{self.source} is {self.type}"


@dataclass(frozen=True, slots=True)
class CheckIndices(Instruction):
    """The elements of the tensor in ``source`` must be in range: a kernel is about to use them."""

    source: Register
    bounds: Bounds
    span: Span | None = field(default=None, compare=False)

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"check r{self.source}: {self.bounds}"


@dataclass(frozen=True, slots=True)
class Invoke(Instruction):
    """Runs a kernel on ``args``, tensors and numbers.

    If it ``fills``, the tensors in ``outs`` are given to it; otherwise it returns what becomes
    them. It writes ``written``, some of the arguments, in place. ``span`` is the user's line.
    """

    kernel: int
    args: tuple[Register, ...]
    outs: tuple[Register, ...]
    fills: bool
    written: tuple[Register, ...] = ()
    span: Span | None = field(default=None, compare=False)

    @property
    def reads(self) -> tuple[Register, ...]:
        return (*self.args, *self.outs) if self.fills else self.args

    @property
    def results(self) -> tuple[Register, ...]:
        return () if self.fills else self.outs

    def __str__(self) -> str:
        args = ", ".join(f"&r{a}" if a in self.written else f"r{a}" for a in self.args)
        if self.fills:
            return f"k{self.kernel}({args}; {texts(self.outs)})"
        outs = f"{texts(self.outs)} = " if self.outs else ""
        return f"{outs}k{self.kernel}({args})"


@dataclass(frozen=True, slots=True)
class MakeClosure(Setting):
    """``out`` is a function whose first parameters are already given."""

    function: str
    captured: tuple[Operand, ...] = ()

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.captured))

    def __str__(self) -> str:
        return f"r{self.out} = closure @{self.function}{text(self.captured)}"


@dataclass(frozen=True, slots=True)
class Call(Setting):
    """``out`` is the result of a function by name, or of the closure in a register."""

    callee: str | Register
    args: tuple[Operand, ...]
    span: Span | None = field(default=None, compare=False)

    @property
    def reads(self) -> tuple[Register, ...]:
        callee = () if isinstance(self.callee, str) else (self.callee,)
        return (*callee, *registers_of(self.args))

    def __str__(self) -> str:
        return f"r{self.out} = call {_callee(self.callee)}{text(self.args)}"


@dataclass(frozen=True, slots=True)
class Release(Instruction):
    """Nobody needs these registers any more."""

    registers: tuple[Register, ...]

    def __str__(self) -> str:
        return f"release {texts(self.registers)}"


@dataclass(frozen=True, slots=True)
class Terminator(Instruction):
    """Base class of what ends a block. ``targets`` are the blocks that may follow."""

    @property
    def targets(self) -> tuple[int, ...]:
        """The numbers of the blocks that may come next."""
        return ()


@dataclass(frozen=True, slots=True)
class Jump(Terminator):
    """Goes on with a block."""

    target: int

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.target,)

    def __str__(self) -> str:
        return f"jump b{self.target}"


@dataclass(frozen=True, slots=True)
class Branch(Terminator):
    """Goes on with one of two blocks, by a boolean scalar tensor."""

    condition: Register
    then: int
    otherwise: int

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.condition,)

    @property
    def targets(self) -> tuple[int, ...]:
        return (self.then, self.otherwise)

    def __str__(self) -> str:
        return f"branch r{self.condition} ? b{self.then} : b{self.otherwise}"


@dataclass(frozen=True, slots=True)
class TailCall(Terminator):
    """Calls in place of the function that is running: its result is that one's result."""

    callee: str | Register
    args: tuple[Operand, ...]

    @property
    def reads(self) -> tuple[Register, ...]:
        callee = () if isinstance(self.callee, str) else (self.callee,)
        return (*callee, *registers_of(self.args))

    def __str__(self) -> str:
        return f"tail call {_callee(self.callee)}{text(self.args)}"


@dataclass(frozen=True, slots=True)
class Return(Terminator):
    """Ends the function; its result is an operand."""

    value: Operand

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.value))

    def __str__(self) -> str:
        return f"return {text(self.value)}"
