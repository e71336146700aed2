"""Sums of products over labelled axes. Add an operator of this kind here.

`meta/op/core/subscripts.py` reads the notation.
"""

from meta.op.core import Tensor, TensorType, op
from meta.op.core.check import require
from meta.op.core.same_dtype import require_same_dtype
from meta.op.core.subscripts import subscripts


@op
def einsum(inputs: tuple[Tensor, ...], equation: str) -> Tensor:
    """The sum, over the labels that the result lacks, of products of elements of the operands.

    ``meta.einsum((a, b), "bij,bjk->bik")`` is a batch of matrix products, ``"ii->"`` a trace,
    ``"i,j"`` an outer product. The notation is numpy's and torch's, see
    `meta.op.core.subscripts`: repeated labels (on one operand its diagonal), ellipsis, implicit
    results, axes of extent 1 that are broadcast.

    inputs: at least one tensor; of one dtype, any but bool. Integers wrap.
    Result: that dtype; products are summed in at least float32 and rounded once.
    Raises TypeInferError for a malformed equation or operands that do not fit it.
    """
    require(len(inputs) > 0, "inputs is empty", expected="at least one tensor")
    dtype = require_same_dtype(*inputs)
    require(dtype != "bool", "bools have no product", expected="a dtype of numbers")
    return TensorType(subscripts(equation, [x.shape for x in inputs]).shape, dtype)
