"""Elementwise functions of one tensor, and casts.

Add one here: to `REAL` if it is a real function, which is float32 for integers and bools, and NaN
outside its domain, and the holomorphic one of complex numbers; else with a type function of
`op/core/elementwise.py`: ``return same(f, x)`` for one that keeps the dtype. A Python number is
accepted as well and gives a Python number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from meta.base.dtype import COMPLEX, has_gradient
from meta.base.errors import ArgumentError
from meta.base.registry import OPERATORS
from meta.op.core import DType, Scalar, Tensor, TensorType, numbers, op
from meta.op.core.check import require, require_float
from meta.op.core.elementwise import define_real, gradient_by_x_or_y, real, same, with_docstring
from meta.op.core.function import as_operand
from meta.op.core.names import EVERYWHERE, NO_NAMES, Names
from meta.op.shapes import reshape_like

REAL: dict[str, tuple[Callable[..., Any], str, Names]] = {
    "exp": (np.exp, "e**x.", EVERYWHERE),
    "log": (np.log, "Natural logarithm; -inf at 0, NaN below.", EVERYWHERE),
    "rsqrt": (lambda n: 1 / np.sqrt(n), "1 / sqrt(x); inf at 0, NaN below.", Names("relax relay")),
    "log2": (np.log2, "Logarithm to base 2; -inf at 0, NaN below.", Names("array_api relay")),
    "log10": (np.log10, "Logarithm to base 10; -inf at 0, NaN below.", Names("array_api relay")),
    "log1p": (
        np.log1p,
        "log(1 + x) without loss for small x; -inf at -1, NaN below.",
        Names("array_api"),
    ),
    "expm1": (np.expm1, "exp(x) - 1 without loss for small x.", Names("array_api")),
    "reciprocal": (np.reciprocal, "1 / x; infinite at 0, with its sign.", Names("array_api onnx")),
    "sin": (np.sin, "Sine.", EVERYWHERE),
    "cos": (np.cos, "Cosine.", EVERYWHERE),
    "tan": (np.tan, "Tangent.", EVERYWHERE),
    "asin": (np.arcsin, "Inverse sine, between -pi/2 and pi/2; NaN for |x| > 1.", EVERYWHERE),
    "acos": (np.arccos, "Inverse cosine, between 0 and pi; NaN for |x| > 1.", EVERYWHERE),
    "atan": (np.arctan, "Inverse tangent, between -pi/2 and pi/2.", EVERYWHERE),
    "sinh": (np.sinh, "Hyperbolic sine.", EVERYWHERE),
    "cosh": (np.cosh, "Hyperbolic cosine.", EVERYWHERE),
    "asinh": (np.arcsinh, "Inverse hyperbolic sine.", EVERYWHERE),
    "acosh": (np.arccosh, "Inverse hyperbolic cosine, not negative; NaN for x < 1.", EVERYWHERE),
    "atanh": (
        np.arctanh,
        "Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond.",
        EVERYWHERE,
    ),
    "deg2rad": (np.deg2rad, "Degrees in radians: x * pi / 180.", NO_NAMES),
    "rad2deg": (np.rad2deg, "Radians in degrees: x * 180 / pi.", NO_NAMES),
    "exp2": (np.exp2, "2**x.", NO_NAMES),
}
"""Real functions: of a Python number, what they are, and what others call them."""
OF_ANGLES = ("deg2rad", "rad2deg")
"""What is of real numbers only."""
for _name, _row in REAL.items():
    define_real(_name, *_row, complex=_name not in OF_ANGLES)
sqrt = define_real("sqrt", np.sqrt, "Square root; NaN below zero.", EVERYWHERE, complex=True)
sqrt_dx = gradient_by_x_or_y(sqrt, "dy / (2 * y), infinite at 0")


@op(elementwise=True, float8=True)
def copy(x: Scalar | Tensor) -> Tensor:
    """The values of ``x`` in memory of their own. ``x``: any shape and dtype."""
    return same(lambda n: n, x)


@op(elementwise=True, float8=True)
def detach(x: Scalar | Tensor) -> Tensor:
    """The values of ``x``, any shape and dtype, which no gradient reaches through the result, and
    of which no tangent leaves: what JAX calls stop_gradient.

    ``x.detach()`` of an array shares its memory.
    """
    return same(lambda n: n, x)


ROUNDINGS: dict[str, tuple[Callable[[Any], Any], str, Names]] = {
    "ceil": (np.ceil, "The smallest whole number not below x.", EVERYWHERE),
    "floor": (np.floor, "The largest whole number not above x.", EVERYWHERE),
    "round": (
        np.round,
        "The nearest whole number, halves to the even one: 0.5 to 0, 1.5 to 2.\n\n"
        "In a call ``decimals=2`` keeps two digits, as in NumPy, and ``decimals=-2`` gives "
        "hundreds, of floating point only.",
        Names("array_api onnx relax"),
    ),
    "trunc": (
        np.trunc,
        "x without its fraction, rounded towards 0.",
        Names("array_api relax relay"),
    ),
}
"""Roundings: of a Python float, what they are, and what others call them."""


def _define_rounding(name: str, on_float: Callable[[Any], Any], summary: str, names: Names) -> None:
    composed = name == "round"

    @op(name=name, elementwise=True, complex=composed, composed=composed, names=names)
    @with_docstring(
        f"{summary}\n\n``x``: any shape and dtype; the result has its type. Infinities and NaN "
        "stay what they are."
    )
    def function(x: Scalar | Tensor) -> Tensor:
        return same(lambda n: numbers.of_float(on_float, n) if isinstance(n, float) else n, x)


for _name, _rounding in ROUNDINGS.items():
    _define_rounding(_name, *_rounding)


def _round(x: Any, decimals: int = 0) -> Any:
    nearest = OPERATORS["round"].plain
    if decimals == 0:
        return nearest(x)
    x = x if isinstance(x, int | float) else as_operand(x)
    whole = isinstance(x, int) if isinstance(x, int | float) else not has_gradient(x.dtype)
    if whole:
        if decimals > 0:
            return nearest(x)
        raise ArgumentError(
            "integers are rounded to whole numbers only",
            expected="decimals >= 0",
            found=decimals,
            hint='x.astype("float64"), which then can be rounded so',
        )
    scale = 10.0 ** abs(decimals)
    return nearest(x * scale) / scale if decimals > 0 else nearest(x / scale) * scale


OPERATORS["round"].calls(_round)


@op(elementwise=True, complex=True, names=EVERYWHERE)
def sign(x: Scalar | Tensor) -> Tensor:
    """1 where x is positive, -1 where it is negative, 0 where it is 0, NaN where it is NaN.

    Of complex numbers x / |x|, and 0 at 0. ``x``: any shape and dtype; the result has its type.
    """
    return same(lambda n: n if n != n else type(n)((n > 0) - (n < 0)), x)


@op(elementwise=True)
def frac(x: Scalar | Tensor) -> Tensor:
    """x - trunc(x), the fraction, with the sign of x. ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes.
    """
    if isinstance(x, TensorType):
        require_float(x, "x")
        return x
    return numbers.of_float(lambda n: n - np.trunc(n), x)  # type: ignore[return-value]


@op(elementwise=True, promotes=("x1", "x2"), names=Names("array_api relax"))
def atan2(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The angle of the point (x2, x1) from the x axis, from -pi to pi; signed zeros count as in C.

    ``x1``, ``x2``: tensors of one dtype, broadcast against one another, or numbers. The result has
    their dtype, float32 for ints and bool.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return real(numbers.of_floats(np.arctan2), x1, x2)


@op(elementwise=True, complex=True, names=Names("array_api relax"))
def square(x: Scalar | Tensor) -> Tensor:
    """x * x. ``x``: numbers of any shape and dtype; the result has its type; integers wrap.

    Raises TypeInferError for bool.
    """
    bools = isinstance(x, TensorType) and x.dtype == "bool"
    require(not bools, "bool has no square", expected="a dtype of numbers")
    return same(lambda n: n * n, x)


def replacements(
    nan: float, posinf: float | None, neginf: float | None, largest: float
) -> tuple[float, float, float]:
    """Return what `nan_to_num` puts in place of NaN and of the two infinities."""
    return nan, largest if posinf is None else posinf, -largest if neginf is None else neginf


def _finite(n: Any, nan: float, posinf: float | None, neginf: float | None) -> Any:
    if math.isfinite(n):
        return n
    instead = replacements(nan, posinf, neginf, sys.float_info.max)
    return instead[0 if math.isnan(n) else 1 if n > 0 else 2]


@op(elementwise=True)
def nan_to_num(
    x: Scalar | Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with ``nan`` in place of NaN, ``posinf`` and ``neginf`` in place of the infinities.

    ``x``: any shape and dtype; the result has its type. ``posinf``, ``neginf``: None stands for the
    dtype's largest number and its negative.
    """
    return same(lambda n: _finite(n, nan, posinf, neginf), x)


@op(elementwise=True, float8=True)
def astype(x: Tensor, dtype: DType) -> Tensor:
    """``x`` in another dtype. Floats are truncated to integers; a bool says whether not 0.

    To int8, int16 and int32 a float goes by way of int32, to int64 and unsigned integers by int64,
    of which the low bits are kept: 300.0 is 44 in int8. What that does not hold, and NaN, is its
    smallest number (0 where it has more bits than the dtype). So does torch on x86 processors, but
    to uint16 and uint32; here all devices and dialects do. uint64 holds what is in its range;
    integers wrap.
    What is beyond the range of a floating point dtype becomes infinite, and of float8_e4m3fn, which
    has no infinity, its largest number, 448. Float8 is rounded to 4 (e5m2: 3) bits, and has no
    gradient, as integers have none. Raises TypeInferError for complex numbers and a dtype that is
    not complex.
    """
    _require_real(x, dtype)
    return x.with_dtype(dtype)


def _require_real(x: TensorType, dtype: str) -> None:
    """Raise TypeInferError for complex numbers that are to be real ones."""
    fits = x.dtype not in COMPLEX or dtype in COMPLEX
    expected = "a complex dtype; take a part of them: meta.real(x), meta.imag(x) or meta.abs(x)"
    require(fits, f"complex numbers have no value in {dtype}", expected=expected)


@op(schema=reshape_like, float8=True, names=Names("relay"))
def cast_like(x: Tensor, like_type: Tensor) -> Tensor:
    """``x`` in the dtype of ``like_type``, converted as by `astype`."""
    _require_real(x, like_type.dtype)
    return x.with_dtype(like_type.dtype)


@op
def group_cast(tensor_list: tuple[Tensor, ...], dtype: DType) -> tuple[Tensor, ...]:
    """Every tensor of a list in another dtype, converted as by `astype`, in one kernel."""
    require(len(tensor_list) > 0, "tensor_list is empty", expected="at least one tensor")
    return tuple(t.with_dtype(dtype) for t in tensor_list)
