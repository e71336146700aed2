"""Writing into slices, in tensor expressions."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.compute import INJECTIVE, compute
from meta.dialect.tvm.transform import ints, place_in_slice
from meta.op.core.slicing import slice_ranges


@compute(op.strided_set, INJECTIVE)
def strided_set(data, v, begin, end, strides, out):
    ranges = slice_ranges(out.static_shape, begin, end, strides, "end")
    if 0 in ints(v.shape):
        return te.compute(out.shape, lambda *i: data(*i), name="strided_set")

    def element(*i):
        index, inside = place_in_slice(i, ranges)
        return tirx.if_then_else(tirx.all(*inside), v(*index), data(*i)) if inside else v(*index)

    return te.compute(out.shape, element, name="strided_set")
