"""The instructions about data values and references; the others are in `bytecode.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from meta.base.source import Span
from meta.ir.quoting import is_identifier, quote
from meta.vm.instruction import Instruction, Operand, Register, registers_of, text

Text = str
"""Any text; a plain ``str`` is the name of a function."""


def _name(name: str) -> str:
    return name if is_identifier(name) else quote(name)


@dataclass(frozen=True, slots=True)
class Construct(Instruction):
    """``out`` is a value of a data type."""

    out: Register
    constructor: Text
    fields: tuple[Operand, ...]

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.fields))

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)

    def __str__(self) -> str:
        return f"r{self.out} = construct {_name(self.constructor)}{text(self.fields)}"


@dataclass(frozen=True, slots=True)
class IsVariant(Instruction):
    """``out`` is whether a constructor made the value in ``source``: what a `Branch` takes, or if
    ``as_tensor`` a tensor.
    """

    out: Register
    source: Register
    constructor: Text
    as_tensor: bool

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)

    def __str__(self) -> str:
        kind = "tensor: " if self.as_tensor else ""
        return f"r{self.out} = {kind}r{self.source} is {_name(self.constructor)}"


@dataclass(frozen=True, slots=True)
class GetField(Instruction):
    """``out`` is a field of a value that ``constructor`` made."""

    out: Register
    source: Register
    constructor: Text
    index: int
    span: Span | None = field(default=None, compare=False)

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)

    def __str__(self) -> str:
        return f"r{self.out} = field {self.index} of {_name(self.constructor)} r{self.source}"


@dataclass(frozen=True, slots=True)
class MakeRef(Instruction):
    """``out`` is a new reference that holds a value."""

    out: Register
    value: Operand

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.value))

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)

    def __str__(self) -> str:
        return f"r{self.out} = reference to {text(self.value)}"


@dataclass(frozen=True, slots=True)
class ReadRef(Instruction):
    """``out`` is what a reference holds."""

    out: Register
    source: Register

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)

    def __str__(self) -> str:
        return f"r{self.out} = held by r{self.source}"


@dataclass(frozen=True, slots=True)
class WriteRef(Instruction):
    """Lets a reference hold another value."""

    ref: Register
    value: Operand

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.ref, *registers_of(self.value))

    def __str__(self) -> str:
        return f"r{self.ref} holds {text(self.value)}"


@dataclass(frozen=True, slots=True)
class Fail(Instruction):
    """Raises an error. ``out`` stands for the value that is never there."""

    out: Register
    message: Text
    span: Span | None = field(default=None, compare=False)

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.out,)

    def __str__(self) -> str:
        return f"r{self.out} = fail {quote(self.message)}"
