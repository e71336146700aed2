"""Values of host code: numbers of C's types, extents of a grid, pointers that stand for arguments.

Numbers are Python's. One that the C type does not hold is an error here, never another number.
"""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from meta.base.errors import MetaError


class HostError(MetaError, ValueError):
    """Host code that cannot be run: what it says, and the line."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor among the values of a call, or ``nullptr`` (place -1); ``type``: of its elements."""

    place: int
    type: str
    is_const: bool

    def cast(self, type_: str) -> Pointer:
        """Return it as a pointer of another type, "const half*"."""
        plain, is_const = element_of(type_)
        return replace(self, type=plain, is_const=is_const)


class Extents(NamedTuple):
    """A ``dim3``."""

    x: int
    y: int = 1
    z: int = 1


STREAM = "stream"
"""What stands for the stream, which is always torch's current one."""
Value = Any
"""int, bool, float, `Pointer`, `Extents`, or `STREAM`."""

_INTEGERS = {
    "int8_t": (8, True),
    "uint8_t": (8, False),
    "int16_t": (16, True),
    "uint16_t": (16, False),
    "int32_t": (32, True),
    "uint32_t": (32, False),
    "int64_t": (64, True),
    "uint64_t": (64, False),
}
_SYNONYMS = {
    "char": "int8_t",
    "signed char": "int8_t",
    "unsigned char": "uint8_t",
    "short": "int16_t",
    "unsigned short": "uint16_t",
    "int": "int32_t",
    "signed": "int32_t",
    "unsigned": "uint32_t",
    "unsigned int": "uint32_t",
    "long": "int64_t",
    "long int": "int64_t",
    "long long": "int64_t",
    "long long int": "int64_t",
    "unsigned long": "uint64_t",
    "unsigned long long": "uint64_t",
    "size_t": "uint64_t",
    "ptrdiff_t": "int64_t",
    "__half": "half",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__hip_bfloat16": "bfloat16",
}
SCALARS = {
    "bool": "?",
    "float": "f",
    "double": "d",
    "half": "e",
    "int8_t": "b",
    "uint8_t": "B",
    "int16_t": "h",
    "uint16_t": "H",
    "int32_t": "i",
    "uint32_t": "I",
    "int64_t": "q",
    "uint64_t": "Q",
}
"""The types of which a kernel takes numbers, as `struct` packs them."""
_SIZES = {"bfloat16": 2, "half2": 4, "bfloat162": 4, "float2": 8, "float4": 16, "double2": 16}
_QUALIFIERS = re.compile(r"\b(const|constexpr|__restrict__|__restrict|restrict|std::|static)\b|::")


def plain(type_: str) -> str:
    """Return a type in one spelling: without qualifiers and spaces that mean nothing."""
    words = _QUALIFIERS.sub(" ", type_).replace("*", " * ").split()
    stars = "*" * words.count("*")
    base = " ".join(w for w in words if w != "*")
    return _SYNONYMS.get(base, base) + stars


def size_of(type_: str, where: str) -> int:
    """Return the bytes of a C type; HostError for one that is not known here."""
    wanted = plain(type_)
    if wanted in SCALARS:
        return struct.calcsize(f"<{SCALARS[wanted]}")
    if wanted not in _SIZES:
        raise HostError(f"{where}: the size of {type_!r} is not known to host code")
    return _SIZES[wanted]


def element_of(pointer: str) -> tuple[str, bool]:
    """Return the element type of a pointer type, and whether it may only be read."""
    return plain(pointer).removesuffix("*"), bool(re.search(r"\bconst\b[^*]*\*", pointer))


def converted(value: Value, type_: str, where: str) -> Value:
    """Return a value as one of a C type; HostError for one that the type does not hold."""
    wanted = plain(type_)
    if wanted == "auto" or wanted.endswith("Stream_t"):
        return value
    if wanted.endswith("*"):
        return _pointer(value, type_, where)
    if wanted == "dim3":
        return value if isinstance(value, Extents) else Extents(int(number(value, where)))
    found = number(value, where)
    if wanted == "float":
        return ctypes.c_float(found).value
    if wanted in ("double", "half", "bfloat16"):
        return float(found)
    if wanted == "bool":
        return bool(found)
    if wanted not in _INTEGERS:
        raise HostError(f"{where}: host code has no values of type {type_!r}")
    bits, signed = _INTEGERS[wanted]
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    whole = int(found)
    if not low <= whole < high:
        raise HostError(f"{where}: {whole} does not fit into {type_}", hint="use int64_t")
    return whole


def _pointer(value: Value, type_: str, where: str) -> Pointer:
    """Return a pointer that is given for one of a type, as C++ converts it without a cast."""
    wanted, is_const = element_of(type_)
    if not isinstance(value, Pointer):
        raise HostError(f"{where}: a pointer is wanted", expected=type_, found=repr(value))
    if value.place < 0:
        return Pointer(-1, wanted, is_const)
    if wanted not in ("void", value.type) or (value.is_const and not is_const):
        found = f"{'const ' if value.is_const else ''}{value.type}*"
        raise HostError(
            f"{where}: a pointer of another type is given",
            expected=type_,
            found=found,
            hint=f"reinterpret_cast<{type_}>(...) if that is meant"
            if not value.is_const or is_const
            else "an argument that the operator only reads is const",
        )
    return Pointer(value.place, wanted, is_const)


def number(value: Value, where: str) -> int | float:
    """Return a value that is a number; HostError otherwise."""
    if isinstance(value, int | float):
        return value
    raise HostError(f"{where}: a number is wanted", found=repr(value))


def truth(value: Value, where: str) -> bool:
    """Return whether a condition holds: a number but 0, a pointer to something."""
    return value.place >= 0 if isinstance(value, Pointer) else bool(number(value, where))
