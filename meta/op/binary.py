"""Elementwise operators of two tensors or numbers, with numpy's broadcasting; and `where`.

Nothing is promoted: tensors have one dtype, and a Python number takes a tensor's, if that can hold
its kind (`op/core/same_dtype.py`) and its value. A number that is only compared may be of any size.
Two Python numbers give a Python number at once.

Add one here; `arithmetic`, `comparison` and `logical` are the three kinds of type function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any

from meta.base.dtype import is_float
from meta.base.errors import TypeInferError
from meta.op.core import AnyScalar, Scalar, Takes, Tensor, TensorType, numbers, op
from meta.op.core.check import broadcast_shapes, require, shape_of
from meta.op.core.same_dtype import require_same_dtype

Function = Callable[[Any, Any], Any]
Addend = Annotated[float | int | bool, Takes("x1", "x2", "otherwise")]
"""A number that takes the operands' dtype, which need not be that of ``out``."""


def arithmetic(on_numbers: Function, x1: Any, x2: Any, *, of_bools: bool = True) -> TensorType:
    """Return the type of a result in the operands' dtype."""
    if not isinstance(x1, TensorType) and not isinstance(x2, TensorType):
        return on_numbers(x1, x2)  # type: ignore[no-any-return]
    dtype = require_same_dtype(x1, x2)
    require(
        of_bools or dtype != "bool",
        "not defined for two bool operands",
        expected="numbers; cast one operand, or use a logical operator",
    )
    return TensorType(broadcast_shapes(shape_of(x1), shape_of(x2)), dtype)


def comparison(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    """Return the type of the bool result of comparing operands of one dtype."""
    require_same_dtype(x1, x2)
    return logical(on_numbers, x1, x2)


def logical(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    """Return the type of a bool result of operands of any dtypes."""
    if not isinstance(x1, TensorType) and not isinstance(x2, TensorType):
        return on_numbers(x1, x2)  # type: ignore[no-any-return]
    return TensorType(broadcast_shapes(shape_of(x1), shape_of(x2)), "bool")


def _where_true(
    function: Function,
    x1: Any,
    x2: Any,
    otherwise: TensorType | None,
    where: TensorType | None,
    bools: bool,
) -> TensorType:
    """Return the type of a sum or difference with ``otherwise`` and ``where``."""
    if otherwise is None:
        if where is not None:
            raise TypeInferError(
                "where is given without otherwise",
                expected="otherwise, which supplies the elements where `where` is false",
            )
        return arithmetic(function, x1, x2, of_bools=bools)
    # The result's dtype is that of `otherwise`, whatever the operands' is; numbers take it.
    numbers = not isinstance(x1, TensorType) and not isinstance(x2, TensorType)
    dtype = require_same_dtype(x1, x2, *((otherwise,) if numbers else ()))
    require(bools or dtype != "bool", "not defined for two bool operands", expected="numbers")
    shape = broadcast_shapes(shape_of(x1), shape_of(x2), shape_of(where))
    require(
        otherwise.shape == shape,
        "otherwise has another shape",
        expected=list(shape),
        found=str(otherwise),
    )
    require(
        is_float(otherwise.dtype) or not is_float(dtype),
        "otherwise cannot hold the result",
        expected="a floating point dtype",
        found=str(otherwise),
    )
    return otherwise


@op(commutative=True)
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
    ``where``: any dtype, nonzero is true, broadcast with x1 and x2; needs ``otherwise``.
    Raises TypeInferError for different dtypes, shapes that do not broadcast, ``where`` without
    ``otherwise``, an ``otherwise`` of another shape or of an integer dtype for a floating sum.
    """
    return _where_true(operator.add, x1, x2, otherwise, where, True)


@op
def subtract(
    x1: Addend | Tensor,
    x2: Addend | Tensor,
    otherwise: Tensor | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """x1 - x2, with ``otherwise`` and ``where`` as in `add`; integers wrap. Not for two bools.

    Raises TypeInferError as `add` does, and for two bool operands.
    """
    return _where_true(operator.sub, x1, x2, otherwise, where, False)


@op(commutative=True)
def multiply(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 * x2; for two bool operands the logical and. Integers wrap.

    ``x1``, ``x2``: of one dtype, which is the result's, broadcast against one another.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return arithmetic(operator.mul, x1, x2)


@op
def divide(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 / x2, true division: of integers and bools it is float32.

    A division by zero gives inf, -inf or NaN, for Python numbers too. Operands as of `multiply`.
    """
    result = arithmetic(numbers.divide, x1, x2)
    if isinstance(result, TensorType) and not is_float(result.dtype):
        return result.with_dtype("float32")
    return result


@op
def power(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 ** x2, for operands as of `multiply`.

    Floating: 0 ** 0 is 1, a negative base with a broken exponent gives NaN. Integers: a negative
    exponent gives the fraction truncated to 0, or 1 or -1 for these bases; a result that does not
    fit wraps.
    Raises TypeInferError for two bool operands.
    """
    return arithmetic(numbers.power, x1, x2, of_bools=False)


@op
def maximum(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The larger of x1 and x2; NaN if either is NaN. Operands as of `multiply`.

    Of 0.0 and -0.0, which are equal, it may be either, and may change with the order.
    """
    return arithmetic(lambda a, b: a if a != a or a >= b else b, x1, x2)


@op
def minimum(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The smaller of x1 and x2; NaN if either is NaN. Operands as of `multiply`.

    Of 0.0 and -0.0, which are equal, it may be either, and may change with the order.
    """
    return arithmetic(lambda a, b: a if a != a or a <= b else b, x1, x2)


@op
def floor_divide(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """floor(x1 / x2) in the operands' dtype, rounded towards -inf as in Python. A zero has the sign
    of x1 / x2, as torch's on the CPU.

    It satisfies x1 = x2 * floor_divide(x1, x2) + mod(x1, x2). Division by zero: 0 for integers (as
    numpy), inf, -inf or NaN for floating point. Raises TypeInferError for two bool operands.
    """
    return arithmetic(numbers.floor_divide, x1, x2, of_bools=False)


@op
def mod(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The remainder x1 - x2 * floor(x1 / x2) in the operands' dtype; it has the sign of x2.

    By zero: 0 for integers (as numpy), NaN for floating point. Raises TypeInferError for two bool
    operands.
    """
    return arithmetic(numbers.mod, x1, x2, of_bools=False)


@op
def less(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 < x2 for operands of one dtype; the result is bool, False for a NaN."""
    return comparison(operator.lt, x1, x2)


@op
def less_equal(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 <= x2 for operands of one dtype; the result is bool, False for a NaN."""
    return comparison(operator.le, x1, x2)


@op
def greater(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 > x2 for operands of one dtype; the result is bool, False for a NaN."""
    return comparison(operator.gt, x1, x2)


@op
def greater_equal(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 >= x2 for operands of one dtype; the result is bool, False for a NaN."""
    return comparison(operator.ge, x1, x2)


@op(commutative=True)
def equal(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 == x2 for operands of one dtype; the result is bool, False for a NaN."""
    return comparison(operator.eq, x1, x2)


@op(commutative=True)
def not_equal(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 != x2 for operands of one dtype; the result is bool, True for a NaN."""
    return comparison(operator.ne, x1, x2)


@op(commutative=True)
def logical_and(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """Whether both are nonzero (a NaN is). Any dtypes; the result is bool."""
    return logical(lambda a, b: bool(a) and bool(b), x1, x2)


@op(commutative=True)
def logical_or(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """Whether one or both are nonzero (a NaN is). Any dtypes; the result is bool."""
    return logical(lambda a, b: bool(a) or bool(b), x1, x2)


@op(commutative=True)
def logical_xor(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """Whether exactly one is nonzero (a NaN is). Any dtypes; the result is bool."""
    return logical(lambda a, b: bool(a) != bool(b), x1, x2)


@op
def where(condition: Tensor, x: Scalar | Tensor, y: Scalar | Tensor) -> Tensor:
    """``x`` where ``condition`` is nonzero, else ``y``.

    All three are broadcast against one another. ``condition``: any dtype. x, y: of one dtype, which
    is the result's (two Python numbers: float32, int64 or bool, which holds both). The branch not
    taken has no influence, be it NaN.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    shape = broadcast_shapes(condition.shape, shape_of(x), shape_of(y))
    return TensorType(shape, require_same_dtype(x, y))
