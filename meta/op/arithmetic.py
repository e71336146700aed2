"""Arithmetic of one to three operands, with NumPy's broadcasting.

Tensors have one dtype (`op/core/promotion.py` casts those of users' calls), and a Python number
takes a tensor's dtype, if that can hold its kind (`op/core/check.py`) and its value. Two Python
numbers give a Python number. Add one of two operands to `BINARY`, with a type function such as
`arithmetic`, for a result in the operands' dtype, or `real`, for a real function, which is float32
for ints and bools.

A fixed-point number is ``multiplier * 2**(shift - 31)``, both int32; 2**30 <= multiplier < 2**31
for one that is normalised. Jacob et al., "Quantization and training of neural networks for
efficient integer-arithmetic-only inference", CVPR 2018, section 2.2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from meta.base.dtype import REAL_OF, has_gradient, is_float
from meta.base.errors import TypeInferError
from meta.op.core import Scalar, Takes, Tensor, TensorType, Weight, numbers, op
from meta.op.core.axes import with_vectors
from meta.op.core.check import (
    broadcast_shapes,
    normalize_axis,
    require,
    require_float,
    require_ndim,
    require_same_dtype,
    shape_of,
)
from meta.op.core.elementwise import Function, arithmetic, real, same, with_docstring
from meta.op.core.indices import divisors, exponents
from meta.op.core.names import EVERYWHERE, NO_NAMES, Names

Addend = Annotated[float | int | bool, Takes("x1", "x2", "otherwise")]
"""A number that takes the operands' dtype, which need not be that of ``out``."""


def _where_true(
    function: Function,
    bools: bool,
    x1: Any,
    x2: Any,
    otherwise: TensorType | None,
    where: TensorType | None,
) -> TensorType:
    """Return the type of a sum or difference with ``otherwise`` and ``where``."""
    if otherwise is None or where is None:
        if where is not None:
            raise TypeInferError(
                "where is given without otherwise",
                expected="otherwise, which supplies the elements where `where` is false",
            )
        if otherwise is not None:
            raise TypeInferError(
                "otherwise is given without where",
                expected="where, which is false for the elements that otherwise supplies",
                found=str(otherwise),
                hint="out= for an array that is to be written",
            )
        return arithmetic(function, x1, x2, of_bools=bools)
    # The result's dtype is that of `otherwise`, whatever the operands' is; numbers take it.
    numbers = not isinstance(x1, TensorType) and not isinstance(x2, TensorType)
    dtype = require_same_dtype(x1, x2, *((otherwise,) if numbers else ()))
    require(bools or dtype != "bool", "not defined for two bool operands", expected="numbers")
    shape = broadcast_shapes(shape_of(x1), shape_of(x2), shape_of(where))
    fits = otherwise.shape == shape
    require(fits, "otherwise has another shape", expected=list(shape), found=str(otherwise))
    fits = is_float(otherwise.dtype) or not is_float(dtype)
    expected = "a floating point dtype"
    require(fits, "otherwise cannot hold the result", expected=expected, found=str(otherwise))
    return otherwise


@op(
    elementwise=True,
    commutative=True,
    complex=True,
    promotes=("x1", "x2"),
    names=Names("array_api onnx relax"),
)
def add(
    x1: Addend | Tensor,
    x2: Addend | Tensor,
    otherwise: Tensor | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """x1 + x2; for two bool operands the logical or.

    ``x1``, ``x2``: broadcast against one another; the result has their dtype; integers wrap.
    ``otherwise``: a tensor of the broadcast shape whose dtype the result takes. Its elements
    are the result's where ``where`` is false; it is not written.
    ``where``: any dtype, nonzero is true, broadcast with x1 and x2. Both are given, or neither.
    Raises TypeInferError for different dtypes, shapes that do not broadcast, one of ``where`` and
    ``otherwise`` alone, an ``otherwise`` of another shape or of an integer dtype for floats.
    """
    return _where_true(operator.add, True, x1, x2, otherwise, where)


@op(
    elementwise=True,
    schema=add,
    complex=True,
    promotes=("x1", "x2"),
    names=Names("array_api relax", onnx="Sub"),
)
def subtract(*arguments: Any) -> Tensor:
    """x1 - x2, with ``otherwise`` and ``where`` as in `add`; integers wrap. Not for two bools.

    Raises TypeInferError as `add` does, and for two bool operands.
    """
    return _where_true(operator.sub, False, *arguments)


def _of_numbers(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    return arithmetic(on_numbers, x1, x2, of_bools=False)


def _quotient(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    result = _of_numbers(on_numbers, x1, x2)
    by_zero = not isinstance(x2, TensorType) and isinstance(result, TensorType) and x2 == 0
    if by_zero and not has_gradient(result.dtype):
        raise numbers.by_zero(f"{x1} by {x2}")
    return result


def _power(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    result = _of_numbers(on_numbers, x1, x2)
    negative = not isinstance(x2, TensorType) and isinstance(result, TensorType) and x2 < 0
    if negative and not has_gradient(result.dtype):
        raise numbers.negative_power(f"{x1} ** {x2}")
    return result


def _of_floats(function: Function, x1: Any, x2: Any) -> TensorType:
    for name, x in (("x1", x1), ("x2", x2)):
        if isinstance(x, TensorType):
            require_float(x, name)
    return arithmetic(numbers.of_floats(function), x1, x2)


def _fmod(x1: Any, x2: Any) -> Any:
    if isinstance(x1, float) or isinstance(x2, float):
        return numbers.of_floats(np.fmod)(x1, x2)
    if not x2:
        raise numbers.by_zero(f"fmod({x1}, {x2})")
    remainder = abs(x1) % abs(x2)
    return remainder if x1 >= 0 else -remainder


def _heaviside(x1: Any, x2: Any) -> Any:
    number = float if isinstance(x1, float) or isinstance(x2, float) else int
    return number(x2 if x1 == 0 else x1 > 0)


REFUSED = "Raises TypeInferError for different dtypes or shapes that do not broadcast"
OPERANDS: dict[Callable[..., TensorType], str] = {
    arithmetic: f"of one dtype, which is the result's, broadcast against one another. {REFUSED}.",
    _of_numbers: "of one dtype, which is the result's, broadcast against one another. "
    f"{REFUSED}, and for two bool operands.",
    _quotient: "of one dtype, which is the result's, broadcast against one another. "
    f"{REFUSED}, and for two bool operands; DivisionByZero, a ZeroDivisionError, where it says so.",
    _power: "of one dtype, which is the result's, broadcast against one another. "
    f"{REFUSED}, for two bool operands, and for integers with a negative number as the exponent.",
    real: "of one dtype, broadcast against one another; the result has it, float32 for ints and "
    f"bools. {REFUSED}.",
    _of_floats: "floating point of one dtype, which is the result's, broadcast against one "
    f"another. {REFUSED}, and for other dtypes.",
}
"""What the operands of a type function are."""
OF_COMPLEX = ("multiply", "divide", "pow")
"""What takes complex operands."""
ROUNDED = "A number beside half precision is rounded to that first, as torch does."
BY_ZERO = (
    "DivisionByZero for integers, eagerly and in compiled programs, on the CPU and with "
    "META_CHECK_INDICES; without it 0 on CUDA."
)
EITHER_ZERO = "Of 0.0 and -0.0, which are equal, it may be either, and may change with the order."
BINARY: dict[str, tuple[Callable[[Function, Any, Any], TensorType], Function, str]] = {
    "multiply": (
        arithmetic,
        operator.mul,
        "x1 * x2; for two bool operands the logical and. Integers wrap.",
    ),
    "divide": (
        real,
        numbers.divide,
        "x1 / x2, true division: of integers and bools it is float32.\n\n"
        "A division by zero gives inf, -inf or NaN, for Python numbers too.",
    ),
    "pow": (
        _power,
        numbers.pow,
        "x1 ** x2.\n\n"
        "Floating: 0 ** 0 is 1, a negative base with a broken exponent gives NaN. Integers: a "
        "negative number is refused as the exponent; in a tensor of exponents it gives, as in "
        "torch, the fraction truncated to 0, or 1 or -1 for these bases; a result that does not "
        f"fit wraps. {ROUNDED}",
    ),
    "maximum": (
        arithmetic,
        lambda a, b: a if a != a or a >= b else b,
        f"The larger of x1 and x2; NaN if either is NaN.\n\n{EITHER_ZERO}",
    ),
    "minimum": (
        arithmetic,
        lambda a, b: a if a != a or a <= b else b,
        f"The smaller of x1 and x2; NaN if either is NaN.\n\n{EITHER_ZERO}",
    ),
    "floor_divide": (
        _quotient,
        numbers.floor_divide,
        "floor(x1 / x2) in the operands' dtype, rounded towards -inf as in Python.\n\n"
        "A zero has the sign of x1 / x2, as torch's on the CPU. It satisfies x1 = x2 * "
        "floor_divide(x1, x2) + remainder(x1, x2). Division by zero: inf, -inf or NaN for floating "
        f"point, and {BY_ZERO}",
    ),
    "remainder": (
        _quotient,
        numbers.remainder,
        "The remainder x1 - x2 * floor(x1 / x2) in the operands' dtype; it has the sign of x2, but "
        "a zero that of x1, as torch's.\n\n"
        f"By zero: NaN for floating point, and {BY_ZERO} {ROUNDED}",
    ),
    "fmod": (
        _quotient,
        _fmod,
        "The remainder x1 - x2 * trunc(x1 / x2); it has the sign of x1, unlike `remainder`.\n\n"
        f"By zero: NaN for floating point, and {BY_ZERO} {ROUNDED}",
    ),
    "copysign": (
        real,
        numbers.of_floats(np.copysign),
        "|x1| with the sign of x2, zeros' included.",
    ),
    "hypot": (_of_floats, np.hypot, "sqrt(x1**2 + x2**2), without overflow between."),
    "fmax": (
        arithmetic,
        lambda a, b: a if b != b or a >= b else b,
        "The larger of x1 and x2; the other one where one is NaN, unlike `maximum`.",
    ),
    "fmin": (
        arithmetic,
        lambda a, b: a if b != b or a <= b else b,
        "The smaller of x1 and x2; the other one where one is NaN, unlike `minimum`.",
    ),
    "logaddexp": (_of_floats, np.logaddexp, "log(exp(x1) + exp(x2)), without overflow."),
    "logaddexp2": (_of_floats, np.logaddexp2, "log2(2**x1 + 2**x2), without overflow."),
    "heaviside": (
        arithmetic,
        _heaviside,
        "The step of x1: 0 below 0 and of NaN, 1 above, x2 at 0.",
    ),
    "ldexp": (
        real,
        numbers.of_floats(lambda a, b: a * np.exp2(b)),
        "x1 * 2**x2; the exponent may be broken.",
    ),
}
"""Functions of two operands: the type function, the function of Python numbers, what they are."""
INDICES = {"floor_divide": divisors, "remainder": divisors, "fmod": divisors, "pow": exponents}
"""What is refused of values."""
COMMUTATIVE = ("multiply", "hypot", "logaddexp", "logaddexp2")
NAMES = {
    **dict.fromkeys(("copysign", "divide", "hypot", "logaddexp"), Names("array_api")),
    **dict.fromkeys(("floor_divide", "maximum", "minimum"), Names("array_api relax relay")),
    "multiply": Names("array_api relax relay", onnx="Mul"),
    "pow": Names("array_api", relax="power", relay="power"),
}
"""What others call them."""


def _define(
    name: str, type_of: Callable[[Function, Any, Any], TensorType], on_numbers: Function, what: str
) -> None:
    @op(
        name=name,
        elementwise=True,
        commutative=name in COMMUTATIVE,
        complex=name in OF_COMPLEX,
        promotes=("x1", "x2"),
        indices=INDICES.get(name),
        names=NAMES.get(name, NO_NAMES),
    )
    @with_docstring(f"{what}\n\n``x1``, ``x2``: {OPERANDS[type_of]}")
    def function(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
        return type_of(on_numbers, x1, x2)


for _name, _row in BINARY.items():
    _define(_name, *_row)


@op(elementwise=True, promotes=("x1", "x2"), names=Names("array_api"))
def nextafter(x1: Tensor, x2: Tensor) -> Tensor:
    """The number of the dtype that follows x1 on the way to x2; x2 where they are equal.

    ``x1``, ``x2``: floating point tensors of one dtype, which is the result's, broadcast against
    one another. Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    return _of_floats(np.nextafter, x1, x2)


def _together(*operands: Any) -> TensorType:
    require_same_dtype(*operands)
    dtype = next(o.dtype for o in operands if isinstance(o, TensorType))
    return TensorType(broadcast_shapes(*map(shape_of, operands)), dtype)


@op(elementwise=True, promotes=("x", "tensor1", "tensor2", "value"))
def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """x + value * tensor1 * tensor2.

    ``x``, ``tensor1``, ``tensor2``: numbers of one dtype, which is the result's, broadcast against
    one another; ``value``: a whole number if they are.
    Raises TypeInferError for bools, different dtypes or shapes that do not broadcast.
    """
    require(x.dtype != "bool", "bool has no product and sum", expected="a dtype of numbers")
    return _together(x, tensor1, tensor2, value)


@op(elementwise=True, promotes=("x", "tensor1", "tensor2"))
def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """x + value * tensor1 / tensor2.

    ``x``, ``tensor1``, ``tensor2``: floating point of one dtype, which is the result's, broadcast
    against one another.
    Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    require_float(x, "x")
    return _together(x, tensor1, tensor2, value)


@op(elementwise=True, promotes=("x", "end", "weight"))
def lerp(x: Tensor, end: Tensor, weight: Scalar | Tensor) -> Tensor:
    """x + weight * (end - x): ``x`` for weight 0, ``end`` for weight 1, exactly.

    ``x``, ``end``, ``weight``: floating point of one dtype, which is the result's, broadcast
    against one another; the weight may be a number.
    Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    require_float(x, "x")
    return _together(x, end, weight)


ROUNDINGS = ("upward", "nearest")


@op(elementwise=True, names=Names("relay"))
def fixed_point_multiply(
    x: Tensor, multiplier: Scalar | Tensor, shift: Scalar | Tensor, rounding: str = "upward"
) -> Tensor:
    """x * multiplier * 2**(shift - 31), rounded to a whole number.

    x, multiplier, shift: int32, broadcast against one another; the last two may be numbers. The
    result is int32, exact where that can hold it, for shifts up to 31.
    rounding: where halves go: "upward" (-1.5 to -1) or "nearest", away from 0 (-1.5 to -2).
    Raises TypeInferError for other dtypes or roundings, or shapes that do not broadcast.
    """
    require(x.dtype == "int32", "x must be int32", expected="int32", found=str(x))
    require_same_dtype(x, multiplier, shift)
    require(
        rounding in ROUNDINGS, "unknown rounding", expected=" or ".join(ROUNDINGS), found=rounding
    )
    return TensorType(broadcast_shapes(x.shape, shape_of(multiplier), shape_of(shift)), "int32")


@op
def fixed_point_number(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normalised fixed-point numbers nearest to x, halves away from 0: (multiplier, shift).

    x: finite, not subnormal, float64 of any shape. Results: int32 of its shape; 0 gives 0 and 0.
    Raises TypeInferError for other dtypes.
    """
    require(x.dtype == "float64", "x must be float64", expected="float64", found=str(x))
    return x.with_dtype("int32"), x.with_dtype("int32")


@op(axes=with_vectors("x", "bias"), complex=True)
def bias_add(x: Tensor, bias: Weight, axis: int = 1) -> Tensor:
    """x plus a bias per index of one axis: ``x + reshape(bias, [1.. C ..1])``.

    x: any dtype. bias: [C] of the same dtype, C = x's extent along ``axis``. Result: x's type.

    Raises TypeInferError if axis, extent or dtype do not fit.
    """
    require_ndim(bias, 1, "bias")
    extent = x.shape[normalize_axis(axis, x.ndim)]
    unknown = not isinstance(extent, int) or not bias.is_static
    require_same_dtype(x, bias)
    fits = unknown or bias.shape[0] == extent
    require(fits, "bias does not fit", expected=f"shape [{extent}]", found=str(bias))
    return x


@op(elementwise=True, complex=True, names=Names("array_api relax relay", onnx="Neg"))
def negative(x: Scalar | Tensor) -> Tensor:
    """-x. ``x``: numbers of any shape and dtype; the result has its type.

    Integers wrap: the smallest is its own negative, and uint8 counts modulo 256. Raises
    TypeInferError for bool.
    """
    fits = not isinstance(x, TensorType) or x.dtype != "bool"
    expected = "a dtype of numbers; for the opposite use logical_not"
    require(fits, "bool has no negative", expected=expected)
    return same(lambda n: -n, x)


@op(elementwise=True, complex=True, names=EVERYWHERE)
def abs(x: Scalar | Tensor) -> Tensor:
    """Absolute value. ``x``: any shape and dtype; the result has its type, of complex numbers that
    of their parts. Integers wrap.
    """
    if isinstance(x, TensorType) and x.dtype in REAL_OF:
        return x.with_dtype(REAL_OF[x.dtype])
    return same(lambda n: n if n > 0 else 0 - n, x)
