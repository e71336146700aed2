"""Writing into slices on ATen."""

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.transform import reversed_axes, sliced
from meta.op.core.slicing import slice_ranges


@dialect.kernel(op.strided_set)
def strided_set(data, v, begin, end, strides, out):
    ranges = slice_ranges(data.shape, begin, end, strides, "end")
    out.copy_(data)
    sliced(out, ranges).copy_(v.flip(reversed_axes(ranges)))
