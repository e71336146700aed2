"""Following another tensor's shape or dtype, in tensor expressions."""

from tvm import te

from meta import op
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, ELEMWISE, INJECTIVE, compute
from meta.dialect.tvm.reduce import accumulator, reduced
from meta.dialect.tvm.transform import broadcast_to, cast, ints, reshape
from meta.op.core.reduction import Reduction
from meta.op.like import collapsed_axes

compute(op.reshape_like, INJECTIVE)(reshape)
compute(op.broadcast_to_like, BROADCAST, static=True)(broadcast_to)


@compute(op.collapse_sum_like, COMM_REDUCE)
def collapse_sum_like(x, out):
    lead = len(x.shape) - out.ndim
    axes = collapsed_axes(tuple(ints(x.shape)), out.static_shape)
    r = Reduction(axes, tuple(a for a in axes if a >= lead))
    dtype = accumulator(str(x.dtype))
    total = reduced(x, r, out.shape, te.sum, lambda i: x(*i).astype(dtype), "collapse_sum_like")
    if dtype == out.dtype:
        return total
    return te.compute(out.shape, lambda *i: total(*i).astype(out.dtype), name="cast")


@compute(op.cast_like, ELEMWISE, static=True)
def cast_like(x, out):
    return cast(x, out.dtype)


@compute(op.group_cast, ELEMWISE, static=True)
def group_cast(tensor_list, out):
    return [cast(t, type_.dtype) for t, type_ in zip(tensor_list, out, strict=True)]
