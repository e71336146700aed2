"""Bitwise operators and shifts of integers, elementwise. Python's & | ^ ~ << >> call them.

Nothing is promoted: tensors have one dtype, and an integer number takes a tensor's. Two Python
numbers give a Python number at once. Add one here.
"""

from __future__ import annotations

import operator
from typing import Any

from meta.base.dtype import is_float
from meta.base.errors import TypeInferError
from meta.op.binary import Function, arithmetic
from meta.op.core import AnyScalar, Scalar, Tensor, TensorType, op
from meta.op.core.same_dtype import require_same_dtype


def _require_integers(*operands: Any, bools: bool) -> None:
    for x in operands:
        is_tensor = isinstance(x, TensorType)
        floating = is_float(x.dtype) if is_tensor else isinstance(x, float)
        if floating or (is_tensor and x.dtype == "bool" and not bools):
            raise TypeInferError(
                "only integers have bits to work on",
                expected="integers or bools" if bools else "integers",
                found=x,
                hint="cast the operand, or use a logical operator",
            )


def _bitwise(function: Function, x1: Any, x2: Any, *, bools: bool = True) -> TensorType:
    _require_integers(x1, x2, bools=bools)
    require_same_dtype(x1, x2)
    return arithmetic(function, x1, x2)


@op(commutative=True)
def bitwise_and(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The bits that both have; of bools the logical and.

    ``x1``, ``x2``: integers or bools of one dtype, which is the result's, broadcast against one
    another. Raises TypeInferError for floats, different dtypes, shapes that do not broadcast.
    """
    return _bitwise(operator.and_, x1, x2)


@op(commutative=True)
def bitwise_or(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The bits that one or both have; of bools the logical or. Arguments as of `bitwise_and`."""
    return _bitwise(operator.or_, x1, x2)


@op(commutative=True)
def bitwise_xor(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The bits that exactly one has; of bools whether they differ. Arguments as `bitwise_and`."""
    return _bitwise(operator.xor, x1, x2)


@op
def bitwise_not(x: Scalar | Tensor) -> Tensor:
    """All bits inverted, -x - 1 for signed integers; of bools the logical not.

    ``x``: integers or bools of any shape; the result has its type. Raises TypeInferError for
    floats.
    """
    _require_integers(x, bools=True)
    if isinstance(x, TensorType):
        return x
    return not x if isinstance(x, bool) else -int(x) - 1  # type: ignore[return-value]


def _shifted_left(x1: int, x2: int) -> int:
    """x1 << x2 in 64 bits, as tensors have it."""
    bits = (x1 << x2) % 2**64 if 0 <= x2 < 64 else 0
    return bits - 2**64 if bits >= 2**63 else bits


@op
def left_shift(x1: Scalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 * 2**x2 modulo the dtype's range; 0 for an ``x2`` that is negative or beyond the bits.

    ``x1``, ``x2``: integers of one dtype, which is the result's, broadcast against one another.
    Raises TypeInferError for floats and bools, different dtypes, shapes that do not broadcast.
    """
    return _bitwise(_shifted_left, x1, x2, bools=False)


@op
def right_shift(x1: Scalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """floor(x1 / 2**x2); for an ``x2`` that is negative or beyond the bits 0, or -1 if x1 < 0.

    ``x1``, ``x2``: integers of one dtype, which is the result's, broadcast against one another.
    Raises TypeInferError for floats and bools, different dtypes, shapes that do not broadcast.
    """
    return _bitwise(lambda a, b: a >> (b if 0 <= b < 64 else 64), x1, x2, bools=False)
