"""What instructions are made of: registers, operands and their base class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

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
