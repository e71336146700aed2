"""Converters of operators on the diagonals and triangles of matrices, the last two axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.arguments import constant, known_number, static_extent
from meta.frontend.relay.registry import relay


def _extents(data: Any) -> tuple[int, int]:
    if data.ndim < 2:
        raise Unconvertible(f"a matrix is needed, not {data.ndim} axes")
    rows, columns = (static_extent(d, "a matrix") for d in data.shape[-2:])
    return rows, columns


@relay("trilu", op.triu, op.tril, op.where)
def trilu(data: Any, k: Any, *, upper: bool, call: CallSite) -> Any:
    """The upper or lower triangle from diagonal k on, a scalar; elsewhere 0."""
    number = known_number(k)
    if number is not None:
        return op.triu(data, int(number)) if upper else op.tril(data, int(number))
    rows, columns = _extents(data)
    place = constant(np.arange(columns) - np.arange(rows)[:, None], k.dtype, call)
    kept = (op.greater_equal if upper else op.less_equal)(place, op.reshape(k, ()))
    return op.where(kept, data, op.zeros_like(data))


@relay("matrix_set_diag", op.take, op.where)
def matrix_set_diag(
    data: Any,
    diagonal: Any,
    *,
    k1: int,
    k2: int,
    super_diag_right_align: bool,
    sub_diag_right_align: bool,
    call: CallSite,
) -> Any:
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
