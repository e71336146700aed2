"""Gradients of the operators that read and write by index, in their order.

Reading and adding by index are each other's transpose.
"""

from typing import Any

from meta import op
from meta.grad.core import gradient
from meta.ir.types import TensorType


@gradient(op.gather)
def gather(data: Any, axis: int, indices: Any, dy: Any) -> Any:
    """dx = dy added up by index."""
    return op.gather_dx(data, axis, indices, dy), None


@gradient(op.gather_dx)
def gather_dx(axis: int, indices: Any, dy_: Any) -> Any:
    """Linear in dy, and independent of the values of data."""
    return op.zeros_like(dy_), None, op.gather(dy_, axis, indices)


@gradient(op.gather_nd)
def gather_nd(data: Any, indices: Any, dy: Any) -> Any:
    """dx = dy added up by index."""
    return op.gather_nd_dx(data, indices, dy), None


@gradient(op.gather_nd_dx)
def gather_nd_dx(indices: Any, dy_: Any) -> Any:
    """Linear in dy, and independent of the values of data."""
    return op.zeros_like(dy_), None, op.gather_nd(dy_, indices)


@gradient(op.index_select)
def index_select(x: Any, axis: int, index: Any, dy: Any) -> Any:
    """dx = dy added up by index."""
    return op.take_dx(x, dy, index, axis, "clip"), None


def _read(dy: Any, axis: int, index: Any, src: TensorType) -> Any:
    """Return dy at the indices, in the shape of src, of which the rest was not used."""
    read = op.gather(dy, axis, index)
    if index.shape == src.shape:
        return read
    return op.strided_slice_dx(read, src.known_shape, (0,) * src.ndim, tuple(index.shape))


@gradient(op.scatter)
def scatter(dy: Any, index: Any, src: TensorType, axis: int) -> Any:
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


@gradient(op.scatter_nd)
def scatter_nd(dy: Any, indices: Any, updates: Any, mode: str) -> Any:
    """As of `scatter` and `scatter_add`."""
    read = op.gather_nd(dy, indices)
    if mode == "add":
        return dy, None, read
    return op.scatter_nd(dy, indices, op.zeros_like(updates), mode), None, read
