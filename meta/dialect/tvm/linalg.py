"""Products of matrices in TE."""

from math import prod

from tvm import te

from meta import op
from meta.dialect.tvm.broadcast import computing
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.index import ints
from meta.op.core.subscripts import subscripts

_ACCUMULATOR = {"float16": "float32", "bfloat16": "float32"}


def product(x1, x2, t1, t2):
    """Return x1 @ x2 over the last two axes, each transposed first if its flag says so.

    Half precision is summed in float32 and rounded once.
    """
    dtype = str(x1.dtype)
    accumulator = _ACCUMULATOR.get(dtype, dtype)
    m, extent = x1.shape[-1 if t1 else -2], x1.shape[-2 if t1 else -1]
    n = x2.shape[-2 if t2 else -1]
    batches = [tuple(x.shape[:-2]) for x in (x1, x2)]
    batch = tuple(a if _is_one(b) else b for a, b in zip(*batches, strict=True))
    k = te.reduce_axis((0, extent), name="k")

    def element(x, lead, row, column, transposed):
        lead = [0 if _is_one(e) else i for i, e in zip(lead, x.shape[:-2], strict=True)]
        row, column = (column, row) if transposed else (row, column)
        return x(*lead, row, column).astype(accumulator)

    def dot(*index):
        *lead, i, j = index
        return te.sum(element(x1, lead, i, k, t1) * element(x2, lead, k, j, t2), axis=k)

    total = te.compute((*batch, m, n), dot, name="product")
    if accumulator == dtype:
        return total
    return te.compute(total.shape, lambda *i: total(*i).astype(dtype), name="rounded")


def _is_one(extent):
    return str(extent) == "1"


@compute(op.matmul, OUT_ELEMWISE_FUSABLE)
def matmul(x1, x2):
    return product(x1, x2, False, False)


@compute(op.matmul_nt, OUT_ELEMWISE_FUSABLE)
def matmul_nt(x1, x2):
    return product(x1, x2, False, True)


@compute(op.matmul_tn, OUT_ELEMWISE_FUSABLE)
def matmul_tn(x1, x2):
    return product(x1, x2, True, False)


@compute(op.matmul_tt, OUT_ELEMWISE_FUSABLE)
def matmul_tt(x1, x2):
    return product(x1, x2, True, True)


@compute(op.dense, OUT_ELEMWISE_FUSABLE)
def dense(x1, x2):
    return product(x1, x2, False, True)


@compute(op.batch_matmul, OUT_ELEMWISE_FUSABLE)
def batch_matmul(x1, x2):
    return product(x1, x2, False, False)


@compute(op.batch_matmul_nt, OUT_ELEMWISE_FUSABLE)
def batch_matmul_nt(x1, x2):
    return product(x1, x2, False, True)


@compute(op.batch_matmul_tn, OUT_ELEMWISE_FUSABLE)
def batch_matmul_tn(x1, x2):
    return product(x1, x2, True, False)


@compute(op.batch_matmul_tt, OUT_ELEMWISE_FUSABLE)
def batch_matmul_tt(x1, x2):
    return product(x1, x2, True, True)


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
