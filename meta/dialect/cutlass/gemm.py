"""Products alone, and products in groups of rows. Where another dialect has a kernel, it goes
first: nobody measured these yet.
"""

from __future__ import annotations

from meta import op
from meta.dialect.core import REFERENCE, OpEnv, Unsupported
from meta.dialect.cutlass import cutlass as dialect
from meta.dialect.cutlass.product import prepared, product
from meta.op.core.call import CallValues
from meta.op.linalg import GROUPED, STORED_TRANSPOSED


def _product(call: CallValues) -> OpEnv:
    """Return the kernel of a product of two matrices."""
    x1, x2 = call.args.x1, call.args.x2
    of = product(x1, x2, *STORED_TRANSPOSED[call.op])
    tensors = {"x1": x1, "x2": x2, "out": call.outputs[0]}
    return prepared(of, "plain", "identity", tensors, call.device)


def _grouped(call: CallValues) -> OpEnv:
    """Return the kernels of a product whose rows are in groups, one matrix for each."""
    x1, x2, offs = call.args.x1, call.args.x2, call.args.offs
    t1, t2 = GROUPED[call.op]
    if x1.ndim != 2 or x2.ndim != 3:
        raise Unsupported("made for groups of rows, with a matrix each")
    if t1:
        raise Unsupported("made for x1 whose rows lie in memory one after the other")
    of = product(x1, x2, t1, t2)
    tensors = {"x1": x1, "x2": x2, "offs": offs, "out": call.outputs[0]}
    return prepared(of, "plain", "identity", tensors, call.device)


for _operator in (op.matmul, op.matmul_nt, op.matmul_tn, op.matmul_tt, op.dense):
    dialect.op(_operator, plevel=REFERENCE)(_product)
for _operator in (op.grouped_matmul, op.grouped_matmul_nt):
    dialect.op(_operator, plevel=REFERENCE)(_grouped)
