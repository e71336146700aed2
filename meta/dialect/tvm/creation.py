"""Operators that create tensors in TE."""

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.broadcast import cast, unfolded
from meta.dialect.tvm.compute import ELEMWISE, INJECTIVE, OPAQUE, compute


def constant(out, value):
    """Return a tensor of the type ``out`` filled with a Python number."""
    number = unfolded(tirx.const(value, out.dtype))
    return te.compute(out.static_shape, lambda *_: number, name="constant")


def filled(out, value):
    """Return a tensor of the type ``out`` filled with a run-time number."""
    number = cast(value, out.dtype) if is_float(out.dtype) else value.astype(out.dtype)
    number = unfolded(number)
    return te.compute(out.static_shape, lambda *_: number, name="full")


@compute(op.zeros, ELEMWISE, static=True)
def zeros(out):
    return constant(out, 0)


@compute(op.ones, ELEMWISE, static=True)
def ones(out):
    return constant(out, 1)


@compute(op.full, INJECTIVE)
def full(fill_value, out):
    return filled(out, fill_value)


@compute(op.arange, OPAQUE)
def arange(start, stop, step, out):
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


def single(value, dtype):
    """Return a run-time number, or the only element of a tensor, in a dtype."""
    if isinstance(value, te.Tensor):
        value = value(*[0] * len(value.shape))
    return cast(value, dtype)


@compute(op.zeros_like, ELEMWISE, static=True)
def zeros_like(out):
    return constant(out, 0)


@compute(op.ones_like, ELEMWISE, static=True)
def ones_like(out):
    return constant(out, 1)


@compute(op.full_like, INJECTIVE)
def full_like(fill_value, out):
    return filled(out, fill_value)


@compute(op.mesh_grid, INJECTIVE)
def mesh_grid(x, out):
    def coordinate(a, vector):
        return te.compute(
            out[a].shape, lambda *i: vector(*i[a : a + len(vector.shape)]), name="mesh_grid"
        )

    return [coordinate(a, vector) for a, vector in enumerate(x)]
