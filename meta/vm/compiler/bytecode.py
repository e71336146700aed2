"""The instructions of the machine, as plain data; ``str(instruction)`` is its line of a listing.

A register is a number within one activation of a function. An *operand* is a register or a nested
tuple of operands. A new instruction is a class here and a case in `run/python_codegen.py`. The
annotations of its fields say what it reads, and how it is written to a file. `code_analysis.py` has
a case for those that make no new memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Union

from meta.base.source import Span
from meta.ir import TensorType
from meta.ir.fields import details_text
from meta.vm.eager.launch_checks import Bounds

Register = int
Operand = Union[int, "tuple[Operand, ...]"]
# What a field is, for the listing and for the file (`code_json.py`): a constant, a kernel or a
# block by its number, or a plain number. A plain str is the name of a function.
ConstantNumber = int
KernelNumber = int
BlockNumber = int
Count = int
PrimitiveName = str
AxisName = str
Details = tuple[str | int, ...]


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
    """Base class. What is read follows from the fields; by default nothing results.

    ``form`` is the line of a listing: the names of fields stand for their values.
    """

    form: ClassVar[str]

    @property
    def reads(self) -> tuple[Register, ...]:
        """The registers whose values it needs: by default those that its fields name."""
        read = (f.name for f in fields(self) if f.type in _READ and f.name != "out")
        values = (getattr(self, name) for name in read)
        return tuple([r for v in values if not isinstance(v, str | None) for r in registers_of(v)])

    def __str__(self) -> str:
        shown = {f.name: _shown(getattr(self, f.name), f.type) for f in fields(self)}
        return self.form.format(**shown)

    @property
    def results(self) -> tuple[Register, ...]:
        """The registers that it sets."""
        return ()


_READ = (
    *("Register", "Register | None", "tuple[Register, ...]"),
    *("Operand", "tuple[Operand, ...]", "str | Register"),
)
"""The annotations of fields that name registers."""


def _shown(value: Any, annotation: Any) -> str:
    """Return the value of a field as a listing has it."""
    if isinstance(value, str):
        return f"@{value}"
    return text(value) if annotation in _READ else str(value)


@dataclass(frozen=True, slots=True)
class Setting(Instruction):
    """Base class of what sets one register, ``out``."""

    out: Register

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True)
class LoadConstant(Setting):
    """``out`` is a constant of the code, a tensor or a number."""

    form = "{out} = constant c{constant}"
    constant: ConstantNumber


@dataclass(frozen=True, slots=True)
class Move(Setting):
    """``out`` is the value of an operand; of a tuple, a new tuple."""

    form = "{out} = {source}"
    source: Operand


@dataclass(frozen=True, slots=True)
class GetItem(Setting):
    """``out`` is a field of a tuple."""

    form = "{out} = {source}.{index}"
    source: Register
    index: Count


@dataclass(frozen=True, slots=True)
class AllocateStorage(Setting):
    """``out`` is the function's memory, in bytes, which all activations use: there is never more
    than one at a time.
    """

    form = "{out} = storage of {size} bytes"
    size: Count


@dataclass(frozen=True, slots=True)
class AllocateTensor(Setting):
    """``out`` is an uninitialised compact tensor: at an offset of a storage, or in memory of its
    own.
    """

    type: TensorType
    storage: Register | None = None
    offset: Count = 0

    def __str__(self) -> str:
        if self.storage is None:
            return f"r{self.out} = new {self.type}"
        return f"r{self.out} = {self.type} in r{self.storage} at {self.offset}"


@dataclass(frozen=True, slots=True)
class ViewTensor(Setting):
    """``out`` is the buffer of ``source`` with the shape of a type."""

    form = "{out} = view {source} as {type}"
    source: Register
    type: TensorType


@dataclass(frozen=True, slots=True)
class OwnShard(Setting):
    """``out`` is this rank's part of the buffer of ``source``, one of ``size`` along an axis of the
    mesh: a tensor with one axis, of a type. Which part it is, is known when it runs.
    """

    source: Register
    type: TensorType
    over: AxisName
    size: Count

    def __str__(self) -> str:
        of = f"r{self.source} over {self.over!r}, one of {self.size}"
        return f"r{self.out} = shard of {of}, as {self.type}"


@dataclass(frozen=True, slots=True)
class Extent(Setting):
    """``out`` is the extent of an axis of a tensor, a number."""

    form = "{out} = extent {axis} of {source}"
    source: Register
    axis: Count


@dataclass(frozen=True, slots=True)
class Check(Instruction):
    """The tensor in ``source`` must have the known extents of a type: only now they are known."""

    form = "check {source} is {type}"
    source: Register
    type: TensorType
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CheckIndices(Instruction):
    """The elements of the tensor in ``source`` must be in range: a kernel is about to use them."""

    form = "check {source}: {bounds}"
    source: Register
    bounds: Bounds
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Invoke(Instruction):
    """Runs a kernel on ``args``, tensors and numbers.

    If it ``fills``, the tensors in ``outs`` are given to it; otherwise it returns what becomes
    them. It writes ``written``, some of the arguments, in place. ``span`` is the user's line.
    """

    kernel: KernelNumber
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

    form = "{out} = closure {function}{captured}"
    function: str
    captured: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class CallFunction(Setting):
    """``out`` is the result of a function by name, or of the closure in a register."""

    form = "{out} = call {callee}{args}"
    callee: str | Register
    args: tuple[Operand, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RunPrimitive(Setting):
    """``out`` is what a primitive (`meta.ir.primitives`) makes of operands; ``as_tensor``: a bool
    becomes a tensor, which a `Branch` does not need.
    """

    name: PrimitiveName
    operands: tuple[Operand, ...]
    details: Details
    as_tensor: bool
    span: Span | None = field(default=None, compare=False)

    def __str__(self) -> str:
        kind = "tensor: " if self.as_tensor else ""
        shown = f"{self.name}{details_text(self.details)}{text(self.operands)}"
        return f"r{self.out} = {kind}{shown}"


# Control.


@dataclass(frozen=True, slots=True)
class Release(Instruction):
    """Nobody needs these registers any more."""

    registers: tuple[Register, ...]

    @property
    def reads(self) -> tuple[Register, ...]:
        return ()

    def __str__(self) -> str:
        return f"release {texts(self.registers)}"


@dataclass(frozen=True, slots=True)
class Terminator(Instruction):
    """Base class of what ends a block. ``targets`` are the blocks that may follow."""

    @property
    def targets(self) -> tuple[BlockNumber, ...]:
        """The numbers of the blocks that may come next."""
        return tuple([getattr(self, f.name) for f in fields(self) if f.type == "BlockNumber"])


@dataclass(frozen=True, slots=True)
class Jump(Terminator):
    """Goes on with a block."""

    form = "jump b{target}"
    target: BlockNumber


@dataclass(frozen=True, slots=True)
class Branch(Terminator):
    """Goes on with one of two blocks, by a boolean scalar tensor."""

    form = "branch {condition} ? b{then} : b{otherwise}"
    condition: Register
    then: BlockNumber
    otherwise: BlockNumber


@dataclass(frozen=True, slots=True)
class TailCall(Terminator):
    """Calls in place of the function that is running: its result is that one's result."""

    form = "tail call {callee}{args}"
    callee: str | Register
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Return(Terminator):
    """Ends the function; its result is an operand."""

    form = "return {value}"
    value: Operand
