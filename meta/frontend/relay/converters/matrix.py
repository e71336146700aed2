"""Converters of matrix products and fully connected layers, and of diagonals and triangles."""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import product
from meta.frontend.relay.arguments import constant, known_number, static_extent
from meta.frontend.relay.layout import to_plain
from meta.frontend.relay.registry import relay

PRODUCTS = {
    (False, False): op.matmul,
    (False, True): op.matmul_nt,
    (True, False): op.matmul_tn,
    (True, True): op.matmul_tt,
}
BATCHED = {
    (False, False): op.batch_matmul,
    (False, True): op.batch_matmul_nt,
    (True, False): op.batch_matmul_tn,
    (True, True): op.batch_matmul_tt,
}


def _of_rows(multiply, rows, weight, out_dtype: str):
    """Return products of the vectors along the last axis of ``rows``, however many axes it has."""
    if rows.ndim == 2:
        return product(multiply, rows, weight, out_dtype)
    lead = tuple(rows.shape[:-1])
    y = product(multiply, op.reshape(rows, (prod(lead), rows.shape[-1])), weight, out_dtype)
    return op.reshape(y, (*lead, y.shape[-1]))


# The number of units is that of the weight's rows.
@relay("nn.dense", op.dense, ignore=("units",))
def dense(data, weight, *, out_dtype):
    return _of_rows(op.dense, data, weight, out_dtype)


@relay("nn.matmul", *PRODUCTS.values(), ignore=("units",))
def matmul(tensor_a, tensor_b, *, out_dtype, transpose_a, transpose_b):
    multiply = PRODUCTS[bool(transpose_a), bool(transpose_b)]
    if not transpose_a:
        return _of_rows(multiply, tensor_a, tensor_b, out_dtype)
    return product(multiply, tensor_a, tensor_b, out_dtype)


@relay("nn.contrib_dense_pack", op.dense, ignore=("units",))
def contrib_dense_pack(data, weight, *, out_dtype):
    """The weight is [units / n, inputs, n], which the layout NC8n calls blocks of 8 units."""
    if weight.ndim != 3:
        raise Unconvertible(f"the weight must have 3 axes, not {weight.ndim}")
    return product(op.dense, data, to_plain(weight, f"NC{weight.shape[2]}n"), out_dtype)


def _second_is_transposed(a, b, call: CallSite) -> bool:
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


def _extents(data) -> tuple[int, int]:
    if data.ndim < 2:
        raise Unconvertible(f"a matrix is needed, not {data.ndim} axes")
    rows, columns = (static_extent(d, "a matrix") for d in data.shape[-2:])
    return rows, columns


@relay("trilu", op.triu, op.tril, op.where)
def trilu(data, k, *, upper, call):
    """The upper or lower triangle from diagonal k on, a scalar; elsewhere 0."""
    number = known_number(k)
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
