"""The instructions about data values and references; the others are in `bytecode.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from meta.base.source import Span
from meta.ir.quoting import is_identifier, quote
from meta.vm.bytecode import Instruction, Operand, Register, Setting, registers_of, text

Text = str
"""Any text; a plain ``str`` is the name of a function."""


def _name(name: str) -> str:
    return name if is_identifier(name) else quote(name)


@dataclass(frozen=True, slots=True)
class Construct(Setting):
    """``out`` is a value of a data type."""

    constructor: Text
    fields: tuple[Operand, ...]

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.fields))

    def __str__(self) -> str:
        return f"r{self.out} = construct {_name(self.constructor)}{text(self.fields)}"


@dataclass(frozen=True, slots=True)
class IsVariant(Setting):
    """``out`` is whether a constructor made the value in ``source``: what a `Branch` takes, or if
    ``as_tensor`` a tensor.
    """

    source: Register
    constructor: Text
    as_tensor: bool

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        kind = "tensor: " if self.as_tensor else ""
        return f"r{self.out} = {kind}r{self.source} is {_name(self.constructor)}"


@dataclass(frozen=True, slots=True)
class GetField(Setting):
    """``out`` is a field of a value that ``constructor`` made."""

    source: Register
    constructor: Text
    index: int
    span: Span | None = field(default=None, compare=False)

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

    def __str__(self) -> str:
        return f"r{self.out} = field {self.index} of {_name(self.constructor)} r{self.source}"


@dataclass(frozen=True, slots=True)
class MakeRef(Setting):
    """``out`` is a new reference that holds a value."""

    value: Operand

    @property
    def reads(self) -> tuple[Register, ...]:
        return tuple(registers_of(self.value))

    def __str__(self) -> str:
        return f"r{self.out} = reference to {text(self.value)}"


@dataclass(frozen=True, slots=True)
class ReadRef(Setting):
    """``out`` is what a reference holds."""

    source: Register

    @property
    def reads(self) -> tuple[Register, ...]:
        return (self.source,)

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
class Fail(Setting):
    """Raises an error. ``out`` stands for the value that is never there."""

    message: Text
    span: Span | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"r{self.out} = fail {quote(self.message)}"
