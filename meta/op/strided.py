"""Operators that write into strided slices. Reading them: `strided_slice` in `transform.py`."""

from meta.op.core import Ints, Tensor, op
from meta.op.core.check import require
from meta.op.core.same_dtype import require_same_dtype
from meta.op.transform import strided_slice


@op
def strided_set(
    data: Tensor, v: Tensor, begin: Ints, end: Ints, strides: Ints | None = None
) -> Tensor:
    """A copy of ``data`` with ``v`` in place of its slice ``[begin:end:strides]``.

    begin, end, strides: as in `strided_slice`. v: of the dtype of data and the shape of the slice.
    """
    part: Tensor = strided_slice.type_function(data, begin, end, strides, "end")
    require_same_dtype(data, v)
    require(v.shape == part.shape, "v has another shape than the slice", expected=part, found=v)
    return data
