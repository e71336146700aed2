"""Operators that tell a tensor's extents, and how those of two tensors broadcast. Add one here.

Extents are part of the type, so the results are Python ints, known without running anything; only
`shape_as_tensor` makes a tensor of them, for programs that compute with shapes.
"""

from meta.op.core import Ints, Scalar, Tensor, op
from meta.op.core.check import broadcast_shapes, normalize_axis, require, shape_of


@op
def shape(x: Tensor) -> tuple[int, ...]:
    """The shape as a tuple of ints, known now. All extents must be static."""
    return x.static_shape


@op
def size(x: Tensor, axis: Ints | None = None) -> int | tuple[int, ...]:
    """The extent of an axis as an int; a tuple of them for several axes, or, by None, for all.

    The extents must be static. Raises TypeInferError for an axis out of range.
    """
    extents = x.static_shape
    if axis is None:
        return extents
    if isinstance(axis, int):
        return extents[normalize_axis(axis, x.ndim)]
    return tuple(extents[normalize_axis(a, x.ndim)] for a in axis)


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


@op
def get_reduce_axis(x1: Scalar | Tensor, x2: Scalar | Tensor) -> tuple[int, ...]:
    """The axes over which to sum ``x1`` to get the shape of ``x2``, a tuple known now.

    With `get_kept_dims`, ``sum(x1, get_reduce_axis(x1, x2), get_kept_dims(x1, x2))`` has the shape
    of ``x2``; nothing is summed if the shapes are equal.
    """
    wide, narrow = shape_of(x1), shape_of(x2)
    require(broadcast_shapes(wide, narrow) == wide, "x2 does not broadcast to the shape of x1")
    lead = len(wide) - len(narrow)
    return tuple(i for i, d in enumerate(wide) if i < lead or (narrow[i - lead] == 1 and d != 1))


@op(schema=get_reduce_axis)
def get_kept_dims(x1: Scalar | Tensor, x2: Scalar | Tensor) -> tuple[int, ...]:
    """Whether each axis of `get_reduce_axis` stays with extent 1: the ``keepdims`` of `sum`."""
    lead = len(shape_of(x1)) - len(shape_of(x2))
    axes: tuple[int, ...] = get_reduce_axis.type_function(x1, x2)
    return tuple(int(a >= lead) for a in axes)
