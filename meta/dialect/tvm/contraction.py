"""Sums of products over labelled axes as TE reductions."""

from math import prod

from tvm import te

from meta import op
from meta.dialect.tvm.broadcast import computing
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.transform import ints
from meta.op.core.subscripts import subscripts


@compute(op.einsum, OUT_ELEMWISE_FUSABLE)
def einsum(inputs, equation, out):
    read = subscripts(equation, [tuple(ints(x.shape)) for x in inputs])
    dtype = computing(out.dtype)
    over = {
        s: te.reduce_axis((0, read.extents[s]), name=f"r{i}") for i, s in enumerate(read.summed)
    }

    def factor(x, labels, index):
        extents = ints(x.shape)
        places = [0 if e == 1 else index[s] for s, e in zip(labels, extents, strict=True)]
        return x(*places).astype(dtype)

    def element(*i):
        index = {**dict(zip(read.result, i, strict=True)), **over}
        pairs = zip(inputs, read.operands, strict=True)
        product = prod((factor(x, labels, index) for x, labels in pairs), start=1)
        return te.sum(product, axis=list(over.values())) if over else product.astype(out.dtype)

    total = te.compute(read.shape, element, name="einsum")
    if not over or dtype == out.dtype:
        return total
    return te.compute(total.shape, lambda *i: total(*i).astype(out.dtype), name="rounded")
