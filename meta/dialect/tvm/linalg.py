"""Products of matrices in TE."""

from math import prod

from tvm import te

from meta import op
from meta.base.dtype import bits
from meta.dialect.core import LIBRARY
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


VECTOR_BYTES = 24 << 10
"""Size up to which a row stays in the first cache while the matrix goes by."""
VECTOR_STEP = 32
"""Elements of which a row has a whole number, so that it is cut into lanes."""


def _of_a_vector(call):
    """Raise the level of products of one row on a CPU, whose time is that of reading the matrix:
    libraries read it at 0.2 to 0.9 of the speed.
    """
    x = call.args.x1
    if call.device.kind != "cpu" or not x.is_static or x.dtype == "float64":
        return None
    fits = x.size * bits(x.dtype) <= 8 * VECTOR_BYTES and x.shape[-1] % VECTOR_STEP == 0
    return LIBRARY + 1 if fits and x.size == x.shape[-1] else None


for _name, _transposed in {"": (0, 0), "_nt": (0, 1), "_tn": (1, 0), "_tt": (1, 1)}.items():
    for _family in ("matmul", "batch_matmul"):
        vector = _of_a_vector if _family + _name == "matmul_nt" else None
        _register = compute(getattr(op, _family + _name), OUT_ELEMWISE_FUSABLE, level_of=vector)
        _register(_product(*_transposed))


compute(op.dense, OUT_ELEMWISE_FUSABLE, level_of=_of_a_vector)(_product(0, 1))


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
