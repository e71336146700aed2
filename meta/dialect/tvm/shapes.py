"""Changes and queries of shapes in TE."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import converted
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, INJECTIVE, compute
from meta.dialect.tvm.index import flat_index, ints, unflat_index
from meta.dialect.tvm.reduce import Over
from meta.op.core.check import inverse_permutation, normalize_axis, permutation, swap_permutation
from meta.op.core.reduction import Reduction
from meta.op.shapes import collapsed_axes, squeezed_axes


@compute(op.reshape, INJECTIVE)
def reshape(x, out):
    source, shape = ints(x.shape), out.static_shape

    def element(*i):
        # Leading axes that are the same need no arithmetic, and let a fused loop keep them.
        same = 0
        while same < min(len(source), len(shape)) and source[same] == shape[same]:
            same += 1
        position = flat_index(i[same:], shape[same:])
        return x(*i[:same], *unflat_index(position, source[same:]))

    return te.compute(shape, element, name="reshape")


def _permuted(order_of, name):
    """Return the kernel of x with axis ``order[i]`` as axis i; ``order_of(ndim, **attributes)``."""

    def kernel(x, out, **attributes):
        order = order_of(ndim=out.ndim, **attributes)
        back = [order.index(a) for a in range(len(order))]
        return te.compute(out.shape, lambda *i: x(*(i[b] for b in back)), name=name)

    return kernel


compute(op.permute_dims, INJECTIVE, static=False)(_permuted(permutation, "permute_dims"))
compute(op.permute_dims_dx, INJECTIVE)(_permuted(inverse_permutation, "permute_dims_dx"))
compute(op.swapaxes, INJECTIVE)(_permuted(swap_permutation, "swapaxes"))


compute(op.batch_flatten, INJECTIVE)(reshape)


@compute(op.expand_dims, BROADCAST, static=True)
def expand_dims(x, axis, num_newaxis, out):
    at = normalize_axis(axis, len(x.shape) + 1)
    return te.compute(out.shape, lambda *i: x(*i[:at], *i[at + num_newaxis :]), name="expand_dims")


@compute(op.squeeze, INJECTIVE)
def squeeze(x, axis, out):
    gone = squeezed_axes(out.with_shape(tuple(ints(x.shape))), axis)

    def element(*i):
        rest = iter(i)
        return x(*(0 if a in gone else next(rest) for a in range(len(x.shape))))

    return te.compute(out.shape, element, name="squeeze")


@compute(op.broadcast_to, BROADCAST, static=True)
def broadcast_to(x, out):
    source = ints(x.shape)
    lead = out.ndim - len(source)
    return te.compute(
        out.shape,
        lambda *i: x(*(0 if d == 1 else v for d, v in zip(source, i[lead:], strict=True))),
        name="broadcast_to",
    )


compute(op.reshape_like, INJECTIVE)(reshape)


compute(op.broadcast_to_like, BROADCAST, static=True)(broadcast_to)


@compute(op.collapse_sum_like, COMM_REDUCE)
def collapse_sum_like(x, out):
    lead = len(x.shape) - out.ndim
    axes = collapsed_axes(tuple(ints(x.shape)), out.static_shape)
    over = Over(x, Reduction(axes, tuple(a for a in axes if a >= lead)))
    return converted(over.sum(over.element(x), "collapse_sum_like"), out.dtype)


@compute(op.shape_as_tensor, INJECTIVE)
def shape_as_tensor(x, out):
    def element(i):
        result = tirx.const(0, out.dtype)
        for axis, extent in enumerate(ints(x.shape)):
            result = tirx.Select(i == axis, tirx.const(extent, out.dtype), result)
        return result

    return te.compute(out.shape, element, name="shape_as_tensor")
