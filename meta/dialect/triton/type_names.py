"""Types as Triton names them: of elements, pointers and numbers, and how numbers lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.dtype import limits, overflow_rounded
from meta.dialect.core import Unsupported

ELEMENT = {
    "bool": "i1",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
"""Elements behind a pointer, by our dtype: all but complex ones."""
FORMAT = {
    "u1": "?",
    "i1": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp32": "f",
    "fp64": "d",
}
"""How `struct` writes a number."""
_NUMBER = {
    "bool": "u1",
    "int8": "i32",
    "int16": "i32",
    "int32": "i32",
    "int64": "i64",
    "uint8": "i32",
    "uint16": "i32",
    "uint32": "i64",
    "uint64": "u64",
    "float16": "fp32",
    "bfloat16": "fp32",
    "float32": "fp32",
    "float64": "fp64",
}
_BITS = 31
MOST_BLOCK = 1 << 20
"""Elements of a block of Triton: how far beyond the last element an index may point."""


def pointer(dtype: str, name: str) -> str:
    """Return the type of a pointer to elements of one of our dtypes; Unsupported if Triton has
    none such.
    """
    if dtype not in ELEMENT:
        raise Unsupported(f"{name} is {dtype}, which Triton does not have")
    return f"*{ELEMENT[dtype]}"


def number_word(dtype: str | None, value: Any) -> str:
    """Return the type of a run-time number that takes a dtype; None: that counts as it is."""
    if dtype is None:
        return "u1" if isinstance(value, bool) else "i64" if isinstance(value, int) else "fp64"
    if dtype not in _NUMBER:
        raise Unsupported(f"a number is {dtype}, which Triton does not have")
    return _NUMBER[dtype]


def static_word(value: bool | int | float, wide: bool) -> str:
    """Return the type of a number that is known now. ``wide``: in 64 bits in any case."""
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, float):
        return "fp64" if wide else "fp32"
    return "i64" if wide or not fits(value) else "i32"


def fits(number: int) -> bool:
    """Whether a number, and what is computed a block beyond it, has 32 bits."""
    return -(1 << _BITS) + MOST_BLOCK <= number <= (1 << _BITS) - MOST_BLOCK


def converter(word: str) -> Callable[[Any], Any]:
    """Return what makes a Python number one that `struct` writes as this type."""
    if word == "fp32":
        return _single
    if word == "fp64":
        return float
    return bool if word in ("u1", "i1") else int


_LARGEST = limits("float32").max


def _single(value: float) -> float:
    """Return a number as float32 has it: beyond its range, infinity."""
    return value if -_LARGEST <= value <= _LARGEST else overflow_rounded(float(value), "float32")
