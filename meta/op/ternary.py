"""Elementwise operators of three operands, with numpy's broadcasting. Tensors have one dtype.

Add one here: `_together` is the type function of a result in the operands' dtype.
"""

from __future__ import annotations

from typing import Any

from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.core.check import broadcast_shapes, require, require_float, shape_of
from meta.op.core.same_dtype import require_same_dtype


def _together(*operands: Any) -> TensorType:
    require_same_dtype(*operands)
    dtype = next(o.dtype for o in operands if isinstance(o, TensorType))
    return TensorType(broadcast_shapes(*map(shape_of, operands)), dtype)


@op
def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """x + value * tensor1 * tensor2.

    ``x``, ``tensor1``, ``tensor2``: numbers of one dtype, which is the result's, broadcast against
    one another; ``value``: a whole number if they are.
    Raises TypeInferError for bools, different dtypes or shapes that do not broadcast.
    """
    require(x.dtype != "bool", "bool has no product and sum", expected="a dtype of numbers")
    return _together(x, tensor1, tensor2, value)


@op
def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """x + value * tensor1 / tensor2.

    ``x``, ``tensor1``, ``tensor2``: floating point of one dtype, which is the result's, broadcast
    against one another.
    Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    require_float(x, "x")
    return _together(x, tensor1, tensor2, value)


@op
def lerp(x: Tensor, end: Tensor, weight: Scalar | Tensor) -> Tensor:
    """x + weight * (end - x): ``x`` for weight 0, ``end`` for weight 1, exactly.

    ``x``, ``end``, ``weight``: floating point of one dtype, which is the result's, broadcast
    against one another; the weight may be a number.
    Raises TypeInferError for other dtypes or shapes that do not broadcast.
    """
    require_float(x, "x")
    return _together(x, end, weight)
