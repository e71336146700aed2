"""Operators that tell a tensor's extents. Add one here; `shape` is in `transform.py`.

Extents are part of the type, so the results are Python ints, known without running anything; only
`shape_as_tensor` makes a tensor of them, for programs that compute with shapes.
"""

from meta.op.core import Ints, Tensor, op
from meta.op.core.check import normalize_axis


@op
def size(x: Tensor, axis: Ints | None = None) -> int | tuple[int, ...]:
    """The extent of an axis as an int; a tuple of them for several axes, or, by None, for all.

    The extents must be static. Raises TypeInferError for an axis out of range.
    """
    shape = x.static_shape
    if axis is None:
        return shape
    if isinstance(axis, int):
        return shape[normalize_axis(axis, x.ndim)]
    return tuple(shape[normalize_axis(a, x.ndim)] for a in axis)


@op
def numel(x: Tensor) -> int:
    """The number of elements, an int. All extents must be static."""
    return x.size


@op(schema=numel)
def ndarray_size(x: Tensor) -> int:
    """The number of elements, an int: Relay's name of `numel`."""
    return x.size


@op(schema=numel)
def shape_as_tensor(x: Tensor) -> Tensor:
    """The shape as a vector: int64, one entry per axis, on the device of ``x``."""
    return Tensor((x.ndim,), "int64")
