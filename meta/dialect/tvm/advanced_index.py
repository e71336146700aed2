"""Indexing by several tensors, in tensor expressions."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import broadcast_shape, cast, computing
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.transform import in_range, ints


def _at(index, i):
    """Return the element of an index tensor at the end of ``i``, broadcast."""
    own = i[len(i) - len(index.shape) :]
    return index(*(0 if d == 1 else v for v, d in zip(own, ints(index.shape), strict=True)))


@compute(op.adv_index, INJECTIVE)
def adv_index(inputs, out):
    x, *indices = inputs
    lead = out.ndim - len(x.shape) + len(indices)
    if 0 in out.shape:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="adv_index")

    def element(*i):
        picked = [
            in_range(_at(index, i[:lead]), extent, "raise")
            for index, extent in zip(indices, ints(x.shape), strict=False)
        ]
        return x(*picked, *i[lead:])

    return te.compute(out.shape, element, name="adv_index")


@compute(op.adv_index_dx, OPAQUE)
def adv_index_dx(dy, inputs, out):
    """Every element looks all indices up: deterministic and parallel, but slow for large ones."""
    indices, dtype = inputs[1:], computing(out.dtype)
    if 0 in ints(dy.shape) or 0 in out.shape:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="adv_index_dx")
    over = [te.reduce_axis((0, d)) for d in broadcast_shape(*(i.shape for i in indices))]

    def element(*i):
        j = [axis.var for axis in over]
        hits = [
            in_range(_at(index, j), extent, "raise") == v
            for index, extent, v in zip(indices, out.static_shape, i, strict=False)
        ]
        value = cast(dy(*j, *i[len(indices) :]), dtype)
        if hits:
            value = tirx.if_then_else(tirx.all(*hits), value, tirx.const(0, dtype))
        return te.sum(value, axis=over) if over else value

    total = te.compute(out.shape, element, name="adv_index_dx")
    return te.compute(out.shape, lambda *i: cast(total(*i), out.dtype), name="cast")
