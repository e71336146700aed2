"""Operators on the bits that hold an element, whatever they mean. Add one here."""

from meta.base.dtype import bits
from meta.op.core import DType, Tensor, op
from meta.op.core.check import require


@op
def reinterpret(x: Tensor, dtype: DType) -> Tensor:
    """The bits of every element of ``x`` read as ``dtype``: 1.0 in float32 is int32 0x3f800000.

    ``x``: any shape. Raises TypeInferError for a dtype of another width, and for bool, whose bits
    may only be 0 and 1.
    """
    require(
        "bool" not in (x.dtype, dtype) and bits(x.dtype) == bits(dtype),
        "the bits cannot be read as the other dtype",
        expected="dtypes of one width, none of them bool",
        found=f"{x.dtype} as {dtype}",
    )
    return x.with_dtype(dtype)
