"""Operators on the bits of elements in TE."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.compute import ELEMWISE, compute


@compute(op.reinterpret, ELEMWISE)
def reinterpret(x, out):
    same = str(x.dtype) == out.dtype
    return te.compute(
        x.shape,
        lambda *i: x(*i) if same else tirx.reinterpret(out.dtype, x(*i)),
        name="reinterpret",
    )
