"""Converters of operators on sparse tensors in coordinate format (COO): indices [entries, axes] and
values [entries], with the shape of the whole as a tensor.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.arguments import ints, known_ints
from meta.frontend.relay.registry import relay


@relay("sparse_to_dense", op.full, op.scatter_nd)
def sparse_to_dense(
    indices: Any, values: Any, default: Any = None, *, output_shape: Any, call: CallSite
) -> Any:
    """Indices: one place, a vector of places, or a row of coordinates per value."""
    shape = ints(output_shape)
    if indices.ndim > 2:
        raise Unconvertible(f"indices of {indices.ndim} axes are not supported")
    where = op.reshape(indices, (-1, 1)) if indices.ndim < 2 else indices
    count, axes = where.shape
    if axes != len(shape):
        raise Unconvertible(f"{axes} coordinates do not name places in the shape {list(shape)}")
    if default is None:
        filled = op.zeros(shape, values.dtype, device=str(call.device))
    else:
        filled = op.broadcast_to(op.reshape(default, (1,) * axes), shape)
    return op.scatter_nd(filled, op.transpose(where), op.broadcast_to(values, (count,)))


@relay("dyn.sparse_to_dense", op.full, op.scatter_nd)
def dyn_sparse_to_dense(
    indices: Any, values: Any, default: Any, output_shape: Any, *, call: CallSite
) -> Any:
    shape = known_ints(output_shape)
    if shape is None:
        raise Unconvertible(
            "the output shape is computed at run time", hint="a constant, or known shapes"
        )
    return sparse_to_dense(indices, values, default, output_shape=shape, call=call)


def _strides(shape: Any) -> Any:
    """Return how many elements lie between neighbours along each axis."""
    backwards = op.cumprod(op.flip(shape, 0), 0, dtype="int64", exclusive=True)
    return op.flip(backwards, 0)


@relay("sparse_reshape", op.cumprod, op.floor_divide, op.mod)
def sparse_reshape(indices: Any, shape: Any, to_shape: Any) -> Any:
    """Indices and shape after a reshape; an extent of -1 is what is left for it."""
    whole, target = op.cast(shape, "int64"), op.cast(to_shape, "int64")
    is_open = op.equal(target, -1)
    others = op.prod(op.where(is_open, 1, target), 0)
    extents = op.where(is_open, op.floor_divide(op.prod(whole, 0), others), target)
    flat = op.sum(op.multiply(op.cast(indices, "int64"), _strides(whole)), 1, True)
    places = op.mod(op.floor_divide(flat, _strides(extents)), extents)
    return op.cast(places, indices.dtype), op.cast(extents, shape.dtype)


@relay("sparse_fill_empty_rows", op.sparse_fill_empty_rows)
def sparse_fill_empty_rows(indices: Any, values: Any, shape: Any, default: Any) -> Any:
    """Indices and which rows were empty are int64, as integer values are: programs cast them."""
    value = op.reshape(op.cast(default, values.dtype), ())
    found, filled, empty = op.sparse_fill_empty_rows(indices, values, shape, value)
    if filled.dtype.startswith(("int", "uint")):
        filled = op.cast(filled, "int64")
    return op.cast(found, "int64"), filled, op.cast(empty, "int64")
