"""Extents as tensors, in tensor expressions."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.compute import INJECTIVE, compute
from meta.dialect.tvm.transform import ints


@compute(op.shape_as_tensor, INJECTIVE)
def shape_as_tensor(x, out):
    def element(i):
        result = tirx.const(0, out.dtype)
        for axis, extent in enumerate(ints(x.shape)):
            result = tirx.Select(i == axis, tirx.const(extent, out.dtype), result)
        return result

    return te.compute(out.shape, element, name="shape_as_tensor")
