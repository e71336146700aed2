"""Python numbers and dtypes: whether a number fits a dtype, and the error if it does not.

A number fits an integer dtype or bool if that has exactly this number. It fits every floating point
dtype, which has it rounded as IEEE 754 says: infinite where it is out of range.
"""

from __future__ import annotations

from typing import Any

from meta.base.dtype import COMPLEX, is_real, limits
from meta.base.errors import ArgumentError, NumberOutOfRange

Number = bool | int | float
_WIDER = ("int16", "int32", "int64")


def integer_range(dtype: str) -> tuple[int, int] | None:
    """Return the smallest and the largest number of an integer dtype or bool; None for a floating
    point or complex dtype, which takes every number.
    """
    if is_real(dtype) or dtype in COMPLEX:
        return None
    bounds = limits(dtype)
    return int(bounds.min), int(bounds.max)


def fits(value: Number, dtype: str) -> bool:
    """Whether a dtype takes a number."""
    bounds = integer_range(dtype)
    return bounds is None or (bounds[0] <= value <= bounds[1] and value == int(value))


def suggest_dtype(value: Number) -> str:
    """Return a dtype to advise for a number that another one does not have."""
    return next((d for d in _WIDER if fits(value, d)), "float32")


def out_of_range(
    value: Number, dtype: str, what: str = "the number", hint: str | None = None
) -> NumberOutOfRange:
    """Return the error about a number that does not fit a dtype."""
    low, high = integer_range(dtype) or (0, 0)
    return NumberOutOfRange(
        f"{what} does not fit {dtype}",
        expected="True, False, 0 or 1"
        if dtype == "bool"
        else f"a whole number from {low} to {high}",
        found=repr(value),
        hint=hint or f'cast the tensor: meta.astype(x, "{suggest_dtype(value)}")',
    )


# Limits of arrays and of a call's results; what exceeds them is an error before it is tried.


MAX_AXES = 64
"""Axes of an array; numpy and torch's operators take no more."""
MAX_BYTES = (1 << 63) - 1
"""Bytes of an array: addresses and strides are int64."""
MAX_RESULTS = 1 << 16
"""Arrays that one call returns."""


class Size(int):
    """The number of elements, NumPy's ``x.size``, which is called for torch's ``x.size(0)``."""

    def __new__(cls, number: int, shape: tuple[Any, ...] = ()) -> Size:
        """Make a number that knows the shape."""
        self = super().__new__(cls, number)
        self.shape = shape
        return self

    shape: tuple[Any, ...]

    def __call__(self, dim: int | None = None) -> Any:
        """Return the shape, or the extent of one axis; ArgumentError if there is none."""
        if dim is None:
            return self.shape
        try:
            return self.shape[dim]
        except (IndexError, TypeError):
            axes = f"axes of a shape of {len(self.shape)}"
            raise ArgumentError("there is no such axis", expected=axes, found=dim) from None
