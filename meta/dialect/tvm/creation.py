"""Operators that create tensors in TE."""

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.broadcast import cast, single, unfolded
from meta.dialect.tvm.compute import ELEMWISE, INJECTIVE, OPAQUE, compute
from meta.op.creation import bounds


def _constant(value):
    """Return the kernel of a tensor filled with a Python number."""

    def kernel(out):
        number = unfolded(tirx.const(value, out.dtype))
        return te.compute(out.static_shape, lambda *_: number, name="constant")

    return kernel


def full(fill_value, out):
    convert = cast if is_float(out.dtype) else type(fill_value).astype
    number = unfolded(convert(fill_value, out.dtype))
    return te.compute(out.static_shape, lambda *_: number, name="full")


for _base in (op.full, op.full_like):
    compute(_base, INJECTIVE)(full)
for _value, _bases in {0: (op.zeros, op.zeros_like), 1: (op.ones, op.ones_like)}.items():
    for _base in _bases:
        compute(_base, ELEMWISE, static=True)(_constant(_value))


@compute(op.arange, OPAQUE)
def arange(start, stop, step, out):
    start, stop = bounds(start, stop)
    dtype = "int64" if all(isinstance(v, int) for v in (start, stop, step)) else "float64"
    first, distance = tirx.const(start, dtype), tirx.const(step, dtype)

    def element(i):
        return (i.astype(dtype) * distance + first).astype(out.dtype)

    return te.compute(out.static_shape, element, name="arange")


@compute(op.one_hot, INJECTIVE)
def one_hot(indices, on_value, off_value, axis, out):
    axis %= out.ndim
    on, off = single(on_value, out.dtype), single(off_value, out.dtype)

    def element(*i):
        index = indices(*i[:axis], *i[axis + 1 :]).astype("int64")
        return tirx.Select(index == i[axis].astype("int64"), on, off)

    return te.compute(out.static_shape, element, name="one_hot")
