"""Converters of matrix products and fully connected layers, of diagonals and triangles, and of
operators on sparse tensors and sparse matrices.

A sparse tensor comes in coordinate format (COO): indices [entries, axes] and values [entries], with
the shape of the whole as a tensor. A matrix comes in the format CSR (data [nonzeros], indices of
their columns, indptr [rows + 1]: where each row begins) or BSR, of blocks (data [blocks, height,
width]). It is written out: products are then those of dense matrices, which have gradients and run
on every dialect.
"""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, constant_ints, constant_number, static_extent
from meta.frontend.core.arithmetic import product
from meta.frontend.relay.layout import to_plain
from meta.frontend.relay.registry import relay

_FORMS = {(False, False): "", (False, True): "_nt", (True, False): "_tn", (True, True): "_tt"}
PRODUCTS = {flags: getattr(op, f"matmul{form}") for flags, form in _FORMS.items()}
BATCHED = {flags: getattr(op, f"batch_matmul{form}") for flags, form in _FORMS.items()}
"""By whether the first and the second operand are transposed."""


def of_rows(multiply, rows, weight, out_dtype):
    """Return products of the vectors along the last axis of ``rows``, however many axes it has."""
    if rows.ndim == 2:
        return product(multiply, rows, weight, out_dtype)
    lead = tuple(rows.shape[:-1])
    y = product(multiply, op.reshape(rows, (prod(lead), rows.shape[-1])), weight, out_dtype)
    return op.reshape(y, (*lead, y.shape[-1]))


# The number of units is that of the weight's rows.
@relay("nn.dense", op.dense, ignore=("units",))
def dense(data, weight, *, out_dtype):
    return of_rows(op.dense, data, weight, out_dtype)


@relay("nn.matmul", *PRODUCTS.values(), ignore=("units",))
def matmul(tensor_a, tensor_b, *, out_dtype, transpose_a, transpose_b):
    multiply = PRODUCTS[bool(transpose_a), bool(transpose_b)]
    if not transpose_a:
        return of_rows(multiply, tensor_a, tensor_b, out_dtype)
    return product(multiply, tensor_a, tensor_b, out_dtype)


@relay("nn.contrib_dense_pack", op.dense, ignore=("units",))
def contrib_dense_pack(data, weight, *, out_dtype):
    """The weight is [units / n, inputs, n], which the layout NC8n calls blocks of 8 units."""
    if weight.ndim != 3:
        raise Unconvertible(f"the weight must have 3 axes, not {weight.ndim}")
    return product(op.dense, data, to_plain(weight, f"NC{weight.shape[2]}n"), out_dtype)


def _second_is_transposed(a, b, call):
    """Tell what a `batch_matmul` without attributes is: that of TVM up to 0.7, which transposes
    the second operand, or that of 0.9 and later with its defaults. The text of a program does not
    say its version, so the shapes decide; where both readings fit it is the later one.
    """
    if call.version is not None:
        return call.version <= (0, 7)
    inner, first, second = a.shape[2], b.shape[1], b.shape[2]
    return bool(inner == second and inner != first)


@relay("nn.batch_matmul", *BATCHED.values())
def batch_matmul(tensor_a, tensor_b, *, out_dtype, transpose_a, transpose_b, call):
    flags = (bool(transpose_a), bool(transpose_b))
    if not call.has_attributes or (call.version is None and not call.given):
        flags = (False, _second_is_transposed(tensor_a, tensor_b, call))
    return product(BATCHED[flags], tensor_a, tensor_b, out_dtype)


def _extents(data):
    if data.ndim < 2:
        raise Unconvertible(f"a matrix is needed, not {data.ndim} axes")
    rows, columns = (static_extent(d, "a matrix") for d in data.shape[-2:])
    return rows, columns


@relay("trilu", op.triu, op.tril, op.where)
def trilu(data, k, *, upper, call):
    """The upper or lower triangle from diagonal k on, a scalar; elsewhere 0."""
    number = constant_number(k)
    if number is not None:
        return op.triu(data, int(number)) if upper else op.tril(data, int(number))
    rows, columns = _extents(data)
    place = constant(np.arange(columns) - np.arange(rows)[:, None], k.dtype, call)
    kept = (op.greater_equal if upper else op.less_equal)(place, op.reshape(k, ()))
    return op.where(kept, data, op.zeros_like(data))


@relay("matrix_set_diag", op.take, op.where)
def matrix_set_diag(data, diagonal, *, k1, k2, super_diag_right_align, sub_diag_right_align, call):
    """Diagonals k1 to k2 replaced. Several are on the last but one axis of ``diagonal``, the upper
    ones first, those that are shorter aligned to the left or right.
    """
    rows, columns = _extents(data)
    if k1 > k2:
        raise Unconvertible(f"the diagonals from {k1} to {k2} are none")
    length = static_extent(diagonal.shape[-1], "the diagonal")
    i, j = np.ogrid[:rows, :columns]
    k = j - i
    chosen = (k1 <= k) & (k <= k2)
    place = np.where(k >= 0, i, j)
    if k1 != k2:
        own = np.where(k >= 0, np.minimum(columns - k, rows), np.minimum(columns, rows + k))
        right = np.where(k >= 0, bool(super_diag_right_align), bool(sub_diag_right_align))
        place = (k2 - k) * length + place + np.where(right, length - own, 0)
        diagonal = op.reshape(diagonal, (*diagonal.shape[:-2], (k2 - k1 + 1) * length))
    places = constant(np.where(chosen, place, 0), "int64", call)
    spread = op.take(diagonal, places, -1)
    return op.where(constant(chosen, "bool", call), spread, data)


@relay("sparse_to_dense", op.full, op.scatter_nd)
def sparse_to_dense(indices, values, default=None, *, output_shape, call):
    """Indices: one place, a vector of places, or a row of coordinates per value."""
    shape = output_shape or ()
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
    return op.scatter_nd(filled, op.permute_dims(where), op.broadcast_to(values, (count,)))


@relay("dyn.sparse_to_dense", op.full, op.scatter_nd)
def dyn_sparse_to_dense(indices, values, default, output_shape, *, call):
    shape = constant_ints(output_shape)
    if shape is None:
        raise Unconvertible(
            "the output shape is computed at run time", hint="a constant, or known shapes"
        )
    return sparse_to_dense(indices, values, default, output_shape=shape, call=call)


def _strides(shape):
    """Return how many elements lie between neighbours along each axis."""
    backwards = op.cumprod.plain(op.flip(shape, 0), 0, "int64", True)
    return op.flip(backwards, 0)


@relay("sparse_reshape", op.cumprod, op.floor_divide, op.remainder)
def sparse_reshape(indices, shape, to_shape):
    """Indices and shape after a reshape; an extent of -1 is what is left for it."""
    whole, target = op.astype(shape, "int64"), op.astype(to_shape, "int64")
    is_open = op.equal(target, -1)
    others = op.prod(op.where(is_open, 1, target), 0)
    extents = op.where(is_open, op.floor_divide(op.prod(whole, 0), others), target)
    flat = op.sum(op.multiply(op.astype(indices, "int64"), _strides(whole)), 1, True)
    places = op.remainder(op.floor_divide(flat, _strides(extents)), extents)
    return op.astype(places, indices.dtype), op.astype(extents, shape.dtype)


@relay("sparse_fill_empty_rows", op.sparse_fill_empty_rows)
def sparse_fill_empty_rows(indices, values, shape, default):
    """Indices and which rows were empty are int64, as integer values are: programs cast them."""
    value = op.reshape(op.astype(default, values.dtype), ())
    found, filled, empty = op.sparse_fill_empty_rows(indices, values, shape, value)
    if filled.dtype.startswith(("int", "uint")):
        filled = op.astype(filled, "int64")
    return op.astype(found, "int64"), filled, op.astype(empty, "int64")


def _rows(indptr, count, call):
    """Return the row of each of ``count`` entries; those that fill up are in the last one."""
    places = op.arange(0, count, 1, dtype=indptr.dtype, device=str(call.device))
    rows = op.subtract(op.searchsorted.plain(indptr, places, True, indptr.dtype), 1)
    return op.clip(rows, 0, indptr.shape[0] - 2)


def _dense(data, indices, indptr, columns, call):
    """Return a matrix of ``columns`` columns, written out; entries of one place add up."""
    if data.ndim not in (1, 2, 3):
        raise Unconvertible(f"a sparse matrix with data of {data.ndim} axes is not supported")
    rows = _rows(indptr, data.shape[0], call)
    at = op.stack((rows, op.astype(indices, rows.dtype)), 0)
    block = (*data.shape[1:], 1, 1)[:2] if data.ndim > 1 else (1, 1)
    grid = (indptr.shape[0] - 1, columns // block[1])
    zeros = op.zeros((*grid, *data.shape[1:]), data.dtype, device=str(call.device))
    blocks = op.scatter_nd(zeros, at, data, "add")
    if data.ndim == 1:
        return blocks
    high = op.permute_dims(op.reshape(blocks, (*grid, *block)), (0, 2, 1, 3))
    return op.reshape(high, (grid[0] * block[0], columns))


BECOMES = (op.searchsorted, op.scatter_nd)


@relay("nn.sparse_dense", "nn.internal.sparse_dense_padded", op.dense, *BECOMES)
def sparse_dense(dense, data, indices, indptr, *, sparse_lhs, call):
    """dense @ sparse.T, or sparse @ dense.T. The padded form has zeros in addition."""
    sparse = _dense(data, indices, indptr, dense.shape[1], call)
    return op.dense(sparse, dense) if sparse_lhs else op.dense(dense, sparse)


@relay("nn.sparse_conv2d", op.dense, *BECOMES)
def sparse_conv2d(dense, data, indices, indptr, *, layout, kernel_size, call):
    """A product with each pixel's channels."""
    if prod(kernel_size) != 1 or layout not in ("NHWC", "NCHW"):
        raise Unconvertible(
            f"kernel_size={tuple(kernel_size)} in the layout {layout} is not supported",
            hint="a kernel of 1 by 1, in NHWC or NCHW",
        )
    x = dense if layout == "NHWC" else op.permute_dims(dense, (0, 2, 3, 1))
    *pixels, channels = x.shape
    weight = _dense(data, indices, indptr, channels, call)
    y = op.dense(op.reshape(x, (prod(pixels), channels)), weight)
    y = op.reshape(y, (*pixels, weight.shape[0]))
    return y if layout == "NHWC" else op.permute_dims(y, (0, 3, 1, 2))


@relay("nn.sparse_add", op.add, *BECOMES)
def sparse_add(dense, data, indices, indptr, *, call):
    return op.add(dense, _dense(data, indices, indptr, dense.shape[1], call))


@relay("nn.sparse_transpose", op.argsort, op.take, op.searchsorted)
def sparse_transpose(data, indices, indptr, *, call):
    """The transposed of a square matrix in CSR format: entries in the order of their columns."""
    if data.ndim != 1:
        raise Unconvertible("only the format CSR is supported")
    order = op.argsort.plain(indices, dtype="int32")
    columns = op.take(indices, order)
    count = indptr.shape[0]
    starts = op.arange(0, count, 1, dtype=indices.dtype, device=str(call.device))
    return (
        op.take(data, order),
        op.astype(op.take(_rows(indptr, data.shape[0], call), order), "int32"),
        op.searchsorted.plain(columns, starts, dtype="int32"),
    )
