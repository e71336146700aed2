"""Vectors of LLVM as Python values: arithmetic on them writes instructions of LLVM's language.

Nothing optimises the text but the code generator, which takes vectors of any length apart into the
processor's. TVM's code generator contracts a product and a sum to one operation, which rounds once;
products are written so that it does not.
"""

from __future__ import annotations

import struct
from typing import Any

LANES = 16
REALS = ("float", "double")
_INTRINSIC = {"float": f"v{LANES}f32", "double": f"v{LANES}f64"}
_NEAREST = 'metadata !"round.tonearest", metadata !"fpexcept.ignore"'


class Text:
    """The instructions of a function, and what it calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()

    def value(self, kind: str, instruction: str, lanes: int = LANES) -> Vector:
        """Add an instruction and return its result, a vector of ``kind``."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return Vector(self, kind, name, lanes)

    def call(self, function: str, more: str, *operands: Vector) -> Vector:
        """Add a call of one of LLVM's functions of real vectors."""
        kind = operands[0].type
        name = f"{function}.{_INTRINSIC[operands[0].kind]}"
        extra = ["metadata"] * more.count("metadata")
        self.declarations.add(
            f"declare {kind} @{name}({', '.join([kind] * len(operands) + extra)})"
        )
        given = [f"{kind} {operand.name}" for operand in operands] + ([more] if more else [])
        return self.value(operands[0].kind, f"call {kind} @{name}({', '.join(given)})")


class Vector:
    """A vector of integers ("i64") or real numbers ("float"); operands are such, or numbers."""

    def __init__(self, text: Text, kind: str, name: str, lanes: int = LANES) -> None:
        self.text, self.kind, self.name, self.lanes = text, kind, name, lanes
        self.type = f"<{lanes} x {kind}>"

    def operand(self, other: Any) -> str:
        """Return an operand as LLVM writes it."""
        if isinstance(other, Vector):
            return other.name
        if self.kind == "float":
            (other,) = struct.unpack("<f", struct.pack("<f", other))
        if self.kind in REALS:
            other = f"0x{struct.pack('>d', other).hex().upper()}"
        return f"splat ({self.kind} {other})"

    def _apply(self, instruction: str, other: Any, kind: str = "") -> Vector:
        prefix = "f" if self.kind in REALS and not kind else ""
        operands = f"{self.type} {self.name}, {self.operand(other)}"
        return self.text.value(kind or self.kind, f"{prefix}{instruction} {operands}")

    def __add__(self, other: Any) -> Vector:
        return self._apply("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Vector:
        return self._apply("sub", other)

    def __mul__(self, other: Any) -> Vector:
        if self.kind not in REALS:
            return self._apply("mul", other)
        factor = Vector(self.text, self.kind, self.operand(other))
        return self.text.call("llvm.experimental.constrained.fmul", _NEAREST, self, factor)

    def __truediv__(self, other: Any) -> Vector:
        return self._apply("div", other)

    def __neg__(self) -> Vector:
        return self.text.value(self.kind, f"fneg {self.type} {self.name}")

    def __and__(self, other: Any) -> Vector:
        return self._apply("and", other)

    def __or__(self, other: Any) -> Vector:
        return self._apply("or", other)

    def __xor__(self, other: Any) -> Vector:
        return self._apply("xor", other)

    def __lshift__(self, other: Any) -> Vector:
        return self._apply("shl", other)

    def __rshift__(self, other: Any) -> Vector:
        return self._apply("ashr", other)

    def at_least(self, other: Any) -> Vector:
        """Return whether each element is ``other`` or more; of a NaN and of what is not."""
        how = "fcmp oge" if self.kind in REALS else "icmp sge"
        return self._apply(how, other, "i1")

    def cast(self, instruction: str, kind: str) -> Vector:
        """Return the elements in another type, by an instruction of LLVM."""
        to = f"<{self.lanes} x {kind}>"
        return self.text.value(kind, f"{instruction} {self.type} {self.name} to {to}", self.lanes)

    def select(self, then: Vector, other: Vector) -> Vector:
        """Return, of truths, elements of ``then`` where they hold, and else of ``other``."""
        choices = f"{then.type} {then.name}, {other.type} {other.name}"
        return self.text.value(then.kind, f"select {self.type} {self.name}, {choices}")

    def interleaved(self, other: Vector) -> Vector:
        """Return the elements of both, by turns."""
        lanes = self.lanes
        order = ", ".join(f"i32 {i}, i32 {lanes + i}" for i in range(lanes))
        operands = f"{self.type} {self.name}, {other.type} {other.name}"
        what = f"shufflevector {operands}, <{2 * lanes} x i32> <{order}>"
        return self.text.value(self.kind, what, 2 * lanes)


class VectorReals:
    """Real vectors, as `meta.runtime.variates` wants them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.mantissa, self.word = (23, "i32") if kind == "float" else (52, "i64")

    def real(self, number: Vector) -> Vector:
        """Return integers as real numbers."""
        if self.word == "i32" and number.kind == "i64":  # which few processors turn into floats
            number = number.cast("trunc", "i32")
        return number.cast("sitofp", self.kind)

    def bits(self, x: Vector) -> Vector:
        """Return the bits of real numbers."""
        return x.cast("bitcast", self.word)

    def of_bits(self, bits: Vector) -> Vector:
        """Return the real numbers of bits."""
        return bits.cast("bitcast", self.kind)

    def sqrt(self, x: Vector) -> Vector:
        """Return square roots."""
        return x.text.call("llvm.sqrt", "", x)

    def choose(self, bit: Vector, then: Vector, other: Vector) -> Vector:
        """Return ``then`` where integers are at least 1, and else ``other``."""
        return bit.at_least(1).select(then, other)
