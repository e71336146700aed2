"""The gradient of an embedding's table with another one added, as where the table is the weights of
the scores, too: those of a product, cast and without the rows that it was padded by.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.embedding import gradient
from meta.ir.types import TensorType


def _added(dy, indices, num_weight, other, begin, end, strides, slice_mode, dtype):
    rows = op.strided_slice(other, begin, end, strides, slice_mode) | other
    return op.add(op.embedding_dx(dy, indices, num_weight), op.cast(rows, dtype) | rows)


@dialect.pattern_op(_added)
def embedding_dx_add(
    dy: TensorType, indices: TensorType, other: TensorType, begin: Any, strides: Any,
    result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    """Return the launches for the sum, whose addend is the first rows of ``other``."""
    begins, steps = ((v,) if isinstance(v, int) else v or () for v in (begin, strides))
    if any(begins) or any(step != 1 for step in steps):
        raise Unsupported("what is added are not the first rows of an array")
    if other.shape[1:] != result.shape[1:] or not other.shape[0] >= result.shape[0]:
        raise Unsupported(f"what is added, {other}, has not the rows of {result}")
    return gradient(dy, indices, result, device.ordinal, other.dtype)
