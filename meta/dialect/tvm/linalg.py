"""Products of matrices in TE."""

from math import prod

from tvm import te

from meta import op
from meta.dialect.tvm.broadcast import broadcast_shape, computing, converted, is_unit
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.index import ints
from meta.op.core.subscripts import subscripts


def product(x1, x2, t1, t2):
    """Return x1 @ x2 over the last two axes, each transposed first if its flag says so.

    Half precision is summed in float32 and rounded once.
    """
    dtype = str(x1.dtype)
    accumulator = computing(dtype)
    m, extent = x1.shape[-1 if t1 else -2], x1.shape[-2 if t1 else -1]
    n = x2.shape[-2 if t2 else -1]
    batch = broadcast_shape(x1.shape[:-2], x2.shape[:-2])
    k = te.reduce_axis((0, extent), name="k")

    def element(x, lead, row, column, transposed):
        lead = [0 if is_unit(e) else i for i, e in zip(lead, x.shape[:-2], strict=True)]
        row, column = (column, row) if transposed else (row, column)
        return x(*lead, row, column).astype(accumulator)

    def dot(*index):
        *lead, i, j = index
        return te.sum(element(x1, lead, i, k, t1) * element(x2, lead, k, j, t2), axis=k)

    return converted(te.compute((*batch, m, n), dot, name="product"), dtype, "rounded")


def _product(t1, t2):
    return lambda x1, x2: product(x1, x2, t1, t2)


for _name, _transposed in {"": (0, 0), "_nt": (0, 1), "_tn": (1, 0), "_tt": (1, 1)}.items():
    for _family in ("matmul", "batch_matmul"):
        compute(getattr(op, _family + _name), OUT_ELEMWISE_FUSABLE)(_product(*_transposed))
compute(op.dense, OUT_ELEMWISE_FUSABLE)(_product(0, 1))


@compute(op.einsum, OUT_ELEMWISE_FUSABLE)
def einsum(equation, operands, out):
    read = subscripts(equation, [tuple(ints(x.shape)) for x in operands])
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
        pairs = zip(operands, read.operands, strict=True)
        product = prod((factor(x, labels, index) for x, labels in pairs), start=1)
        return te.sum(product, axis=list(over.values())) if over else product.astype(out.dtype)

    return converted(te.compute(read.shape, element, name="einsum"), out.dtype, "rounded")
