"""Reading and writing elements by index or mask."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import (
    at_least_1d,
    axis_of,
    in_dtype,
    like_1d,
    number_for,
    replaced,
)
from tools.torch_samples.decline import decline_if


def index_select(input: Any, dim: int, index: Any) -> Any:
    """Slices along an axis."""
    return like_1d(meta.index_select, input, dim, at_least_1d(index))


def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """Elements along an axis, each at an index of its own."""
    if index.size == 0:  # and then of any shape
        return meta.zeros(index.shape, input.dtype)
    x, places = at_least_1d(input), at_least_1d(index)
    # torch reads a part of the other axes; `take_along_axis` broadcasts them.
    part = meta.strided_slice(x, (0,) * x.ndim, replaced(places, dim, x.shape[axis_of(x, dim)]))
    return meta.reshape(meta.take_along_axis(part, places, dim), index.shape)


def into(function: Any) -> Any:
    """Return scatter or scatter_add: elements, or a number, to indices of their own."""

    def scattered(input: Any, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Any:
        decline_if(reduce == "multiply", "scatter that multiplies")
        if isinstance(src, int | float):
            src = meta.full(index.shape, number_for(src, input), input.dtype)
        write = meta.scatter_add if reduce == "add" else function
        if index.ndim == 0 or input.ndim == 0:
            vectors = map(at_least_1d, (input, index, src))
            x, places, values = vectors
            return meta.reshape(write(x, dim, places, values), input.shape)
        return write(input, dim, index, src)

    return scattered


def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """`take_along_axis`, of flattened tensors without an axis."""
    if dim is None:
        return meta.take_along_axis(meta.reshape(input, (-1,)), meta.reshape(indices, (-1,)))
    return meta.take_along_axis(input, indices, dim)


def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    """Slices added at indices of an axis."""
    x, rows = at_least_1d(input), at_least_1d(source)
    return meta.reshape(meta.index_add(x, dim, at_least_1d(index), rows, alpha), input.shape)


def index_copy(input: Any, dim: int, index: Any, source: Any) -> Any:
    """Slices written to indices of an axis."""
    x, rows = at_least_1d(input), at_least_1d(source)
    return meta.reshape(meta.index_copy(x, dim, at_least_1d(index), rows), input.shape)


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Any:
    """A number written to indices of an axis."""
    x = at_least_1d(input)
    return meta.reshape(meta.index_fill(x, dim, at_least_1d(index), value), input.shape)


def index_put(input: Any, index: Any, values: Any, accumulate: bool = False) -> Any:
    """Elements written, or added, at indices of the leading axes."""
    decline_if(any(i is None for i in index), "an axis that no index is for")
    if index[0].dtype == "bool":
        index = tuple(meta.array(i) for i in np.nonzero(index[0].numpy()))
    shape = np.broadcast_shapes(*[i.shape for i in index])
    places = meta.stack(tuple(meta.broadcast_to(meta.astype(i, "int64"), shape) for i in index), 0)
    full = meta.broadcast_to(values, (*shape, *input.shape[len(index) :]))
    return meta.scatter_nd(input, places, full, "add" if accumulate else "update")


def nonzero_static(input: Any, *, size: int, fill_value: int = -1) -> Any:
    """So many rows of `argwhere`, filled up with a number."""
    rows = meta.argwhere(input)
    count, ndim = rows.shape
    if count >= size:
        return meta.strided_slice(rows, (0,), (size,))
    filling = meta.full((size - count, ndim), fill_value, "int64")
    return meta.concat((rows, filling), 0)


def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Elements written, or added, at indices of the flattened tensor."""
    flat, places = meta.reshape(input, (-1,)), meta.reshape(index, (-1,))
    places = places % max(flat.size, 1)
    write = meta.scatter_add if accumulate else meta.scatter
    return meta.reshape(write(flat, 0, places, meta.reshape(source, (-1,))), input.shape)


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """A number where a mask says."""
    return meta.where(mask, number_for(value, input), input)


def masked_select(input: Any, mask: Any) -> Any:
    """The elements where a mask says, as a vector."""
    return meta.masked_select(input, mask)


def masked_scatter(input: Any, mask: Any, source: Any) -> Any:
    """The elements of a source, one after the other, where a mask says."""
    return meta.masked_scatter(input, mask, source)


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Any:
    """A slice written to one index of an axis."""
    at = axis_of(input, dim)
    return slice_scatter(input, meta.expand_dims(src, at), at, index, index + 1 or None)


def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Elements written to a slice of an axis."""
    at = axis_of(input, dim)
    begin, stop, _ = slice(start, end, step).indices(input.shape[at])
    lead = (0,) * at
    ends = (*input.shape[:at], max(begin, stop))
    return meta.strided_set(input, src, (*lead, begin), ends, (*(1,) * at, step))


def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Elements written to a diagonal."""
    on = meta.diagonal_dx(meta.ones_like(src), input.shape, offset, dim1, dim2)
    return meta.where(on, meta.diagonal_dx(src, input.shape, offset, dim1, dim2), input)


def fill(input: Any, value: Any) -> Any:
    """One number, or a 0-d tensor's, everywhere."""
    if isinstance(value, int | float):
        return meta.full_like(input, value)
    return meta.broadcast_to(meta.cast_like(value, input), input.shape)


def searchsorted(
    sorted_sequence: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Where values belong in an ascending sequence."""
    number = isinstance(values, int | float)
    values = meta.full((1,), values, sorted_sequence.dtype) if number else values
    ordered = (
        sorted_sequence if sorter is None else meta.take_along_axis(sorted_sequence, sorter, -1)
    )
    found = meta.searchsorted(ordered, values, "right" if right else side or "left")
    found = meta.reshape(found, ()) if number else found
    return meta.astype(found, "int32") if out_int32 else found


def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Whether every element is among others."""
    if not hasattr(elements, "ndim"):
        elements = meta.full((), elements, test_elements.dtype)
    one_more = meta.expand_dims(elements, -1)
    tests = test_elements
    tests = meta.reshape(tests, (-1,)) if hasattr(tests, "ndim") else tests
    found = meta.any(one_more == tests, -1)
    return meta.logical_not(found) if invert else found


def histogram_counts(input: Any, minlength: int = 0) -> Any:
    """How often every number from 0 occurs."""
    length = max(int(meta.max(input)) + 1 if input.size else 0, minlength)
    hot = meta.one_hot(input, max(length, 1), 1, 0, -1, "int64")
    return meta.sum(hot, 0) if length else meta.zeros((0,), "int64")


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often every number from 0 occurs, or the sum of weights."""
    if weights is None:
        return histogram_counts(input, minlength)
    length = max(int(meta.max(input)) + 1 if input.size else 0, minlength)
    double = in_dtype(weights, "float64")
    return meta.scatter_add(
        meta.zeros((length,), "float64"), 0, meta.astype(input, "int64"), double
    )


def one_hot(input: Any, num_classes: int = -1) -> Any:
    """1 at every index, 0 elsewhere."""
    depth = int(meta.max(input)) + 1 if num_classes == -1 else num_classes
    return meta.one_hot(input, depth, 1, 0, -1, "int64")


def embedding(
    weight: Any,
    input: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of a table."""
    decline_if(max_norm is not None, "rows that are scaled in place")
    decline_if(padding_idx is not None, "a row without gradient")
    decline_if(scale_grad_by_freq, "a gradient divided by how often a row was taken")
    return meta.embedding(input, weight)


def take(input: Any, index: Any) -> Any:
    """Elements of the flattened tensor, negative indices counted from its end."""
    return meta.take(input, index, None, "wrap")


def unravel_index(indices: Any, shape: Any) -> Any:
    """Indices into a flattened shape as indices of its axes."""
    decline_if(isinstance(shape, int), "one axis")
    found, rest = [], meta.astype(indices, "int64")
    for extent in reversed(tuple(shape)):
        found.append(rest % extent)
        rest = meta.floor_divide(rest, extent)
    return tuple(reversed(found))


ADAPTERS = {
    "__getitem__": lambda input, index: input[index],
    "argwhere": meta.argwhere,
    "bincount": bincount,
    "bucketize": lambda input, boundaries, *, out_int32=False, right=False: searchsorted(
        boundaries, input, out_int32=out_int32, right=right
    ),
    "diagonal_scatter": diagonal_scatter,
    "fill": fill,
    "gather": gather,
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill": index_fill,
    "index_put": index_put,
    "index_select": index_select,
    "isin": isin,
    "masked_fill": masked_fill,
    "masked_scatter": masked_scatter,
    "masked_select": masked_select,
    "nn.functional.embedding": embedding,
    "nn.functional.one_hot": one_hot,
    "nonzero": lambda input, as_tuple=False: (
        meta.nonzero(at_least_1d(input)) if as_tuple else meta.argwhere(input)
    ),
    "nonzero_static": nonzero_static,
    "put": put,
    "scatter": into(meta.scatter),
    "scatter_add": into(meta.scatter_add),
    "searchsorted": searchsorted,
    "select_scatter": select_scatter,
    "slice_scatter": slice_scatter,
    "take": take,
    "take_along_dim": take_along_dim,
    "unravel_index": unravel_index,
}
