"""Element types. A dtype is its canonical name, a ``str``: "float32", "int64", "bool".

That of an array compares with what else names a dtype, too (`DType`). To add one, add a row to
`_TABLE`.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import torch

from meta.base.aliases import DTYPE
from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import nearest

_TABLE: dict[str, tuple[torch.dtype, Any]] = {
    "bool": (torch.bool, np.bool_),
    "uint8": (torch.uint8, np.uint8),
    "int8": (torch.int8, np.int8),
    "int16": (torch.int16, np.int16),
    "int32": (torch.int32, np.int32),
    "int64": (torch.int64, np.int64),
    # torch moves these, but has little arithmetic of them: see meta/dialect/torch.
    "uint16": (torch.uint16, np.uint16),
    "uint32": (torch.uint32, np.uint32),
    "uint64": (torch.uint64, np.uint64),
    # For storage and `scaled_matmul`: they are moved and cast, and have no other arithmetic.
    "float8_e4m3fn": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    "float8_e5m2": (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    # For Fourier transforms and the arithmetic around them; no code is generated for them.
    "complex64": (torch.complex64, np.complex64),
    "complex128": (torch.complex128, np.complex128),
    "float16": (torch.float16, np.float16),
    "bfloat16": (torch.bfloat16, ml_dtypes.bfloat16),
    "float32": (torch.float32, np.float32),
    "float64": (torch.float64, np.float64),
}
DTYPES: tuple[str, ...] = tuple(_TABLE)
TO_TORCH: dict[str, torch.dtype] = {name: row[0] for name, row in _TABLE.items()}
FROM_TORCH: dict[torch.dtype, str] = {row[0]: name for name, row in _TABLE.items()}
TO_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(row[1]) for name, row in _TABLE.items()}
_FROM_NUMPY: dict[Any, str] = {dtype: name for name, dtype in TO_NUMPY.items()}
_FROM_PYTHON: dict[Any, str] = {
    complex: "complex128",
    float: "float64",
    int: "int64",
    bool: "bool",
}


class DType(str):
    """The name of a dtype, which equals the dtype of torch and of NumPy, too.

    >>> DType("float32") == "float32" == DType("float32") == torch.float32
    True
    >>> DType("float32") in (np.float64, torch.float16, "float64")
    False
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, str):
            other = (
                FROM_TORCH.get(other) if isinstance(other, torch.dtype) else _foreign_name(other)
            )
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __call__(self, *values: object, **_: object) -> Any:
        """Raise ArgumentError: a dtype is no type of scalars."""
        value = repr(values[0]) if len(values) == 1 else "..."
        value = value if len(value) < 60 else "..."
        raise ArgumentError(
            "a dtype is a text, and makes no arrays",
            found=f"meta.{self}({value})",
            hint=f'meta.array({value}, "{self}"), or x.astype("{self}")',
        )

    if not TYPE_CHECKING:  # for which there is no such attribute

        def __getattr__(self, name: str) -> Any:
            if name in DTYPE:
                raise UnknownName(f"a dtype has no {name!r}", hint=f"write {DTYPE[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return TO_TORCH[self].itemsize

    @property
    def is_floating_point(self) -> bool:
        """Whether elements are real floating point numbers, as torch's dtype says it."""
        return TO_TORCH[self].is_floating_point

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex."""
        return TO_TORCH[self].is_complex


def _foreign_name(other: object) -> str | None:
    """Return the name of a dtype of NumPy or of a Python type of numbers; None for what is none."""
    if isinstance(other, np.dtype):
        return _FROM_NUMPY.get(other)
    if not isinstance(other, type):
        return None
    numpy = issubclass(other, np.generic)
    return _FROM_NUMPY.get(np.dtype(other)) if numpy else _FROM_PYTHON.get(other)


NAMED: dict[str, DType] = {name: DType(name) for name in _TABLE}
"""The dtype of arrays, by its plain name, which is what everything else computes with."""
FLOATS: frozenset[str] = frozenset({"float16", "bfloat16", "float32", "float64"})
SIGNED: frozenset[str] = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED: frozenset[str] = frozenset({"uint8", "uint16", "uint32", "uint64"})
_INTEGERS = SIGNED | UNSIGNED
FLOAT8: frozenset[str] = frozenset({"float8_e4m3fn", "float8_e5m2"})
REAL_OF: dict[str, str] = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the real and the imaginary part, by complex dtype."""
TOLERANCE: dict[str, tuple[float, float]] = {
    "float16": (4e-3, 2e-3),
    "bfloat16": (3e-2, 2e-2),
    "float32": (2e-5, 2e-5),
    "float64": (1e-9, 1e-10),
}
"""How far results of two kernels may be apart, (rtol, atol) by dtype: a few units in the last place
of results of moderate size."""
COMPLEX: frozenset[str] = frozenset(REAL_OF)


def canonical(dtype: object) -> str:
    """Return the canonical name of a dtype given as a name, a torch or numpy dtype, or a Python
    scalar type: as for both, float is float64 and complex complex128.

    Raises ArgumentError for anything else.
    """
    if isinstance(dtype, str) and dtype in _TABLE:
        return str(dtype)
    if isinstance(dtype, torch.dtype) and dtype in FROM_TORCH:
        return FROM_TORCH[dtype]
    if isinstance(dtype, type) and dtype in _FROM_PYTHON:
        return _FROM_PYTHON[dtype]
    try:
        if dtype is not None:  # which is float64 to numpy
            return _FROM_NUMPY[np.dtype(cast(Any, dtype))]
    except (TypeError, ValueError, KeyError, SyntaxError):  # numpy parses text such as "f4, f4"
        pass
    hint = nearest(str(dtype), _TABLE)
    if isinstance(dtype, int):
        hint = "a shape is one argument, a tuple: meta.zeros((2, 3))"
    elif hasattr(dtype, "dtype"):
        hint = "x.dtype of the array"
    raise ArgumentError(
        "unknown dtype", expected=", ".join(_TABLE), found=f"{dtype!r:.200}", hint=hint
    )


def is_float(dtype: str) -> bool:
    """Whether values of the dtype have floating point arithmetic and a gradient: not float8."""
    return dtype in FLOATS


def is_real(dtype: str) -> bool:
    """Whether values of the dtype are floating point numbers, float8 included."""
    return dtype in FLOATS or dtype in FLOAT8


def has_gradient(dtype: str) -> bool:
    """Whether arrays of the dtype have gradients: floating point and complex ones, not float8."""
    return dtype in FLOATS or dtype in COMPLEX


def complex_of(dtype: str) -> str:
    """Return the complex dtype whose parts are float32 or float64; a complex dtype itself."""
    return dtype if dtype in COMPLEX else next(c for c, part in REAL_OF.items() if part == dtype)


def bits(dtype: str) -> int:
    """Return the storage width of one element in bits."""
    return TO_TORCH[dtype].itemsize * 8


def promote(a: str, b: str) -> str:
    """Return the dtype in which two arrays are combined: torch's promotion table, and numpy's for
    integers and bool, of which a floating point or complex dtype takes any. Of float8 neither has
    anything: another floating point or complex dtype holds it, and float16 holds both kinds.
    """
    if a == b:
        return a
    if a in FLOAT8 or b in FLOAT8:
        other = b if a in FLOAT8 else a
        return other if has_gradient(other) else "float16"
    if not (has_gradient(a) or has_gradient(b)):
        return _FROM_NUMPY[np.promote_types(TO_NUMPY[a], TO_NUMPY[b])]
    if not (has_gradient(a) and has_gradient(b)):
        return a if has_gradient(a) else b
    return FROM_TORCH[torch.promote_types(TO_TORCH[a], TO_TORCH[b])]


@dataclass(frozen=True, slots=True)
class Limits:
    """Smallest and largest finite value of a dtype, or of its parts, as Python numbers."""

    min: float | int
    max: float | int


@cache
def limits(dtype: str) -> Limits:
    """Return the finite range of a dtype."""
    if dtype == "bool":
        return Limits(0, 1)
    if is_real(dtype) or dtype in COMPLEX:
        f = torch.finfo(TO_TORCH[dtype])
        return Limits(f.min, f.max)
    i = torch.iinfo(TO_TORCH[dtype])
    return Limits(i.min, i.max)


def overflow_rounded(value: float | int, dtype: str) -> float | int:
    """Return a number as a floating point dtype has it if it is beyond the dtype's largest finite
    value: rounded to that or to infinity, as IEEE 754 rounds. Other numbers are returned unchanged.
    """
    largest = limits(dtype).max
    if value != value or abs(value) <= largest:
        return value
    if dtype == "float8_e4m3fn":  # has no infinity
        return largest if value > 0 else -largest
    _, exponent = math.frexp(largest)
    ulp = int(math.ldexp(torch.finfo(TO_TORCH[dtype]).eps, exponent - 1))
    near = math.inf if abs(value) >= int(largest) + ulp // 2 else largest
    return near if value > 0 else -near


def truncation_dtype(dtype: str) -> str:
    """Return the integer dtype by way of which a cast from floating point goes: int64 for the
    unsigned ones and int64, else int32.

    A fraction is dropped. What this dtype does not hold, and NaN, is its smallest number; then the
    low bits are kept. So do the x86 processors, and torch on them but to uint16 and uint32. Of
    uint64 all numbers are held.
    """
    return "int32" if dtype in ("int8", "int16", "int32") else "int64"


def prepare_cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what `torch.Tensor.to` is to convert to a dtype, so that it gives the same everywhere.

    For float8_e4m3fn, which has no infinity, larger numbers are replaced by its largest, 448; NaN
    stays NaN. (Torch itself does that in some versions, and makes NaN of such numbers in others.)
    Of floating point numbers that are to be integers see `truncation_dtype`, by which x86
    processors go, and others do not.
    """
    if tensor.is_complex() and not dtype.is_complex:
        raise ArgumentError(
            "complex numbers have no value in this dtype",
            expected=", ".join(sorted(COMPLEX)),
            found=FROM_TORCH.get(dtype, str(dtype)),
            hint="take a part of them: meta.real(x), meta.imag(x) or meta.abs(x)",
        )
    if tensor.dtype.is_floating_point and FROM_TORCH.get(dtype, "float32") in _INTEGERS:
        by_itself = tensor.device.type == "cpu" and platform.machine() in ("x86_64", "AMD64")
        by_int32 = dtype in (torch.uint16, torch.uint32)  # by which torch goes to these
        return tensor if by_itself and not by_int32 else truncate(tensor, dtype)
    if dtype != torch.float8_e4m3fn or tensor.dtype == dtype:
        return tensor
    if not tensor.dtype.is_floating_point or tensor.dtype == torch.float8_e5m2:
        tensor = tensor.to(torch.float32)
    largest = limits("float8_e4m3fn").max
    return tensor.clamp(-largest, largest)


def truncate(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return floating point numbers as integers by the rule of `truncation_dtype`, anywhere."""
    wide = tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)
    carrier = TO_TORCH[truncation_dtype(FROM_TORCH[dtype])]
    least = torch.iinfo(carrier).min
    upper = wide >= -float(least) if dtype == torch.uint64 else None
    if upper is not None:
        wide = torch.where(upper, wide + float(least), wide)
    inside = wide.abs() < -float(least)
    whole = torch.where(inside, torch.where(inside, wide, 0).to(carrier), least)
    if upper is not None:
        whole = torch.where(upper, whole ^ least, whole)
    return whole.to(dtype)
