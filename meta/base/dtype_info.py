"""What the Array API asks of dtypes: limits, kinds and the results of promotion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from meta.base.dtype import (
    DTYPES,
    REAL_OF,
    TO_TORCH,
    bits,
    canonical,
    complex_of,
    is_real,
    limits,
    promote,
)
from meta.base.errors import ArgumentError

_KINDS: dict[str, frozenset[str]] = {
    "bool": frozenset({"bool"}),
    "signed integer": frozenset(d for d in DTYPES if d.startswith("int")),
    "unsigned integer": frozenset(d for d in DTYPES if d.startswith("uint")),
    "real floating": frozenset(d for d in DTYPES if is_real(d)),
    "complex floating": frozenset(d for d in DTYPES if d.startswith("complex")),
}
_KINDS["integral"] = _KINDS["signed integer"] | _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] | _KINDS["real floating"] | _KINDS["complex floating"]


@dataclass(frozen=True, slots=True)
class finfo:
    """Limits of a floating point dtype, or of the parts of a complex one, given by a dtype or an
    array of one. As `numpy.finfo`.

    Attributes
    ----------
    bits: width of an element. eps: distance from 1.0 to the next number. max, min: the largest and
    smallest finite number. smallest_normal: the smallest positive one of full precision. dtype: its
    canonical name.

    >>> meta.finfo("float16").max
    65504.0
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: str

    def __init__(self, type: object, /) -> None:
        dtype = _dtype_of(type)
        dtype = REAL_OF.get(dtype, dtype)
        if not is_real(dtype):
            raise ArgumentError(
                "finfo describes floating point dtypes", found=dtype, hint="use meta.iinfo"
            )
        of = torch.finfo(TO_TORCH[dtype])
        values = (of.bits, of.eps, of.max, of.min, of.smallest_normal, dtype)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class iinfo:
    """Limits of an integer dtype, given by a dtype or an array of one. As `numpy.iinfo`.

    Attributes
    ----------
    bits: width of an element. max, min: the largest and the smallest number. dtype: its canonical
    name.

    >>> meta.iinfo("int8").min, meta.iinfo("int8").max
    (-128, 127)
    """

    bits: int
    max: int
    min: int
    dtype: str

    def __init__(self, type: object, /) -> None:
        dtype = _dtype_of(type)
        if dtype not in _KINDS["integral"]:
            raise ArgumentError(
                "iinfo describes integer dtypes", found=dtype, hint="use meta.finfo"
            )
        of = limits(dtype)
        for name, value in zip(self.__slots__, (bits(dtype), of.max, of.min, dtype), strict=True):
            object.__setattr__(self, name, value)


def _dtype_of(x: object) -> str:
    """Return the dtype of an array or traced value, or the dtype itself."""
    found = getattr(x, "dtype", x)
    return found if isinstance(found, str) and found in TO_TORCH else canonical(found)


def isdtype(dtype: object, kind: object) -> bool:
    """Return whether a dtype is of a kind: another dtype, a kind of the Array API, or a tuple.

    Kinds: "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex
    floating", "numeric". Raises ArgumentError for another name.

    >>> meta.isdtype("float32", "real floating"), meta.isdtype("int8", "bool")
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    name = canonical(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return name in _KINDS[kind]
    try:
        return name == canonical(kind)
    except ArgumentError as error:
        raise ArgumentError(
            "unknown kind of dtype", expected=", ".join([*_KINDS, "a dtype"]), found=repr(kind)
        ) from error


def can_cast(from_: Any, to: object, /) -> bool:
    """Return whether promotion leads from a dtype, or that of an array, to another.

    As in torch, an integer dtype is promoted to any floating point dtype.

    >>> meta.can_cast("int32", "int64"), meta.can_cast("float32", "int64")
    (True, False)
    """
    target = _dtype_of(to)
    return promote(_dtype_of(from_), target) == target


def result_type(*arrays_and_dtypes: Any) -> str:
    """Return the dtype to which arrays and dtypes are promoted together.

    Python numbers take the dtype of the others, if that can hold their kind; else they count as
    float32, int64, bool or complex64. Raises ArgumentError where only numbers are given.

    >>> meta.result_type("int32", "float16"), meta.result_type(meta.ones(2), 3)
    ('float16', 'float32')
    """
    python = bool | int | float | complex
    numbers = [a for a in arrays_and_dtypes if isinstance(a, python)]
    dtypes = [_dtype_of(a) for a in arrays_and_dtypes if not isinstance(a, python)]
    if not dtypes:
        raise ArgumentError(
            "result_type needs an array or a dtype", found=arrays_and_dtypes or "nothing"
        )
    common = reduce(promote, dtypes)
    for number in numbers:
        if isinstance(number, complex):
            wide = common in ("float64", "complex128")
            common = complex_of("float64" if wide else "float32")
        elif isinstance(number, float) and isdtype(common, ("bool", "integral")):
            common = "float32"
        elif isinstance(number, int) and not isinstance(number, bool) and common == "bool":
            common = "int64"
    return common
