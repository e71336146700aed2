"""Gradients of operators that read and write at indices.

Reading and adding by index are each other's transpose.
"""

from typing import Any

from meta import op
from meta.grad.core import gradient, gradients
from meta.ir.types import TensorType
from meta.op.shapes import padding_row

gradients(
    {
        op.take_along_axis: lambda x, dy, indices, axis: (
            op.take_along_axis_dx(x, dy, indices, axis),
            None,
        ),
        op.gather_nd: lambda data, indices, dy: (op.gather_nd_dx(data, indices, dy), None),
        op.index_select: lambda x, axis, index, dy: (op.take_dx(x, dy, index, axis), None),
        op.take: lambda x, dy, indices, *options: (op.take_dx(x, dy, indices, *options), None),
        # Linear in dy, and independent of the values of the first argument.
        op.take_along_axis_dx: lambda dy_, indices, axis: (
            op.zeros_like(dy_),
            op.take_along_axis.plain(dy_, indices, axis),
            None,
        ),
        op.gather_nd_dx: lambda indices, dy_: (
            op.zeros_like(dy_),
            None,
            op.gather_nd(dy_, indices),
        ),
        op.take_dx: lambda dy_, indices, *options: (
            op.zeros_like(dy_),
            op.take(dy_, indices, *options),
            None,
        ),
        op.embedding_dx: lambda dy_, indices: (op.embedding(indices, dy_), None),
    }
)


def _read(dy: Any, axis: int, index: Any, src: TensorType) -> Any:
    """Return dy at the indices, in the shape of src, of which the rest was not used."""
    read = op.take_along_axis.plain(dy, index, axis)
    if index.shape == src.shape:
        return read
    return op.strided_slice_dx(read, src.known_shape, (0,) * src.ndim, tuple(index.shape))


@gradient(op.scatter)
def scatter(dy: Any, axis: int, index: Any, src: TensorType) -> Any:
    """dx = dy, 0 where src was written; dsrc = dy there.

    Of x, y and src only the types count, so others of their types are given, and none is kept.
    """
    dsrc = _read(dy, axis, index, src)
    return op.scatter_dx(dy, dy, dy, index, dsrc, axis), None, dsrc


@gradient(op.scatter_dx)
def scatter_dx(dy_: Any, index: Any, src: Any, axis: int) -> Any:
    """Linear in dy; zero by the others."""
    zero = op.zeros_like(dy_)
    through = op.scatter_dx(dy_, dy_, dy_, index, src, axis)
    return zero, zero, through, None, op.zeros_like(src)


@gradient(op.scatter_add)
def scatter_add(dy: Any, index: Any, src: TensorType, axis: int) -> Any:
    """dx = dy; dsrc = dy where src was added."""
    return dy, None, _read(dy, axis, index, src)


@gradient(op.scatter_reduce)
def scatter_reduce(x: Any, index: Any, src: Any, axis: int, reduce: str, y: Any, dy: Any) -> Any:
    """Of an extremum: dy, shared by those that are equal to it. Of a product: dy times the others.

    Zeros are counted, as a product without one factor is no quotient where that factor is 0.
    """
    used = src
    if index.shape != src.shape:
        used = op.strided_slice(src, (0,) * src.ndim, tuple(index.shape))
    if reduce == "prod":
        dx, dused = _factors(x, index, used, axis, dy)
    else:
        here = op.astype(op.equal(x, y), dy.dtype)
        there = op.astype(op.equal(used, op.take_along_axis.plain(y, index, axis)), dy.dtype)
        share = dy / op.scatter_add(here, axis, index, there)
        dx, dused = here * share, there * op.take_along_axis.plain(share, index, axis)
    if used is not src:
        dused = op.strided_slice_dx(dused, tuple(src.shape), (0,) * src.ndim, tuple(index.shape))
    return dx, None, dused


def _factors(x: Any, index: Any, src: Any, axis: int, dy: Any) -> Any:
    """Return the gradients of a product at both kinds of factors."""
    x_zero, src_zero = op.equal(x, 0.0), op.equal(src, 0.0)
    zeros = op.scatter_add(op.astype(x_zero, dy.dtype), axis, index, op.astype(src_zero, dy.dtype))
    x_rest, src_rest = op.where(x_zero, 1.0, x), op.where(src_zero, 1.0, src)
    rest = dy * op.scatter_reduce.plain(x_rest, axis, index, src_rest, "prod")

    def at(zero: Any, factor: Any, count: Any, whole: Any) -> Any:
        alone = op.where(op.equal(count, 1.0), whole, op.zeros_like(whole))
        others = op.where(op.equal(count, 0.0), whole / factor, op.zeros_like(whole))
        return op.where(zero, alone, others)

    read = (op.take_along_axis.plain(t, index, axis) for t in (zeros, rest))
    return at(x_zero, x_rest, zeros, rest), at(src_zero, src_rest, *read)


@gradient(op.scatter_nd)
def scatter_nd(dy: Any, indices: Any, updates: Any, mode: str) -> Any:
    """As of `scatter` and `scatter_add`."""
    read = op.gather_nd(dy, indices)
    if mode == "add":
        return dy, None, read
    return op.scatter_nd(dy, indices, op.zeros_like(updates), mode), None, read


@gradient(op.adv_index)
def adv_index(inputs: Any, dy: Any) -> Any:
    """dx = dy added up by index; indices have none."""
    return (op.adv_index_dx(dy, inputs), *(None for _ in inputs[1:]))


@gradient(op.adv_index_dx)
def adv_index_dx(dy_: Any, inputs: Any) -> Any:
    """Linear in dy, and independent of the values of x."""
    indices = inputs[1:]
    return op.adv_index((dy_, *indices)), (op.zeros_like(dy_), *(None for _ in indices))


@gradient(op.embedding)
def embedding(x: TensorType, dy: Any, indices: Any, padding_idx: Any) -> Any:
    """dx = rows of dy added up by index, but for those of the padding."""
    if padding_idx is not None:
        kept = op.not_equal(indices, padding_row(x, padding_idx))
        kept = op.reshape(kept, (*indices.shape, *[1] * (dy.ndim - indices.ndim)))
        dy = op.where(kept, dy, op.zeros_like(dy))
    return op.embedding_dx(dy, indices, x.known_shape), None
