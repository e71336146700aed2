"""Several tensors into one, and tensors beside one another."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import axis_of, indices, narrowed
from tools.torch_samples.decline import decline_if
from tools.torch_samples.families.shapes import resized_to


def cat(tensors: Any, dim: int = 0) -> Any:
    """Join along an axis; an empty vector is nothing, whatever the others are."""
    decline_if(len({t.dtype for t in tensors}) > 1, "tensors of several dtypes")
    some = tuple(t for t in tensors if t.shape != (0,)) or tuple(tensors)
    return meta.concat(some, dim)


def stacked(ndim: int, axis: int) -> Any:
    """Return vstack or its kin: join along an axis of tensors that have so many axes at least."""

    def joined(tensors: Any) -> Any:
        raised = tuple(resized_to(t, ndim) for t in tensors)
        return meta.concat(raised, 0 if raised[0].ndim == 1 else axis)

    return joined


def column_stack(tensors: Any) -> Any:
    """Join vectors as columns, and matrices beside them."""
    return meta.concat(tuple(meta.reshape(t, (-1, 1)) if t.ndim < 2 else t for t in tensors), 1)


def block_diag(*tensors: Any) -> Any:
    """Matrices along the diagonal of a large one."""
    blocks = [resized_to(t, 2) for t in tensors]
    columns = sum(b.shape[1] for b in blocks)
    rows, before = [], 0
    for block in blocks:
        after = columns - before - block.shape[1]
        rows.append(meta.pad(block, ((0, 0), (before, after))))
        before += block.shape[1]
    return meta.concat(tuple(rows), 0)


def meshgrid(*tensors: Any, indexing: str = "ij") -> Any:
    """The coordinates of a grid; the indexing is "ij" if not given."""
    vectors = tensors[0] if isinstance(tensors[0], tuple | list) else tensors
    return meta.meshgrid(*vectors, indexing=indexing)


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of elements of vectors, one per row."""
    if len(tensors) == 1:
        return meta.copy(tensors[0])
    grids = meta.meshgrid(*tensors, indexing="ij")
    return meta.stack(tuple(meta.reshape(g, (-1,)) for g in grids), 1)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """The combinations of r elements of a vector, one per row."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.size), r))
    return meta.take(input, indices(np.reshape(rows, (len(rows), r))))


def broadcast_tensors(*tensors: Any) -> Any:
    """Tensors repeated to their common shape."""
    shape = np.broadcast_shapes(*[t.shape for t in tensors])
    return tuple(meta.broadcast_to(t, shape) for t in tensors)


def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The differences of neighbours, n times over."""
    if n == 0:
        return meta.copy(input)
    parts = tuple(t for t in (prepend, input, append) if t is not None)
    x, at = meta.concat(parts, dim) if len(parts) > 1 else input, axis_of(input, dim)
    less = meta.not_equal if x.dtype == "bool" else meta.subtract
    for _ in range(min(n, x.shape[at])):
        later = narrowed(x, at, 1, x.shape[at])
        x = less(later, narrowed(x, at, 0, max(x.shape[at] - 1, 0)))
    return x


def means(y: Any, x: Any, dx: float, dim: int) -> Any:
    """Return the areas of the trapezoids between neighbours."""
    at, count = axis_of(y, dim), y.shape[dim]
    heights = narrowed(y, at, 1, count) + narrowed(y, at, 0, max(count - 1, 0))
    if x is None:
        return heights * (dx / 2)
    if x.ndim == 1:
        x = meta.reshape(x, tuple(count if i == at else 1 for i in range(y.ndim)))
    widths = narrowed(x, at - y.ndim, 1, count) - narrowed(x, at - y.ndim, 0, max(count - 1, 0))
    return heights * widths / 2


def trapezoid(y: Any, x: Any = None, *, dx: float = 1, dim: int = -1) -> Any:
    """The integral of samples by the rule of trapezoids."""
    return meta.sum(means(y, x, dx, dim), dim)


def cumulative_trapezoid(y: Any, x: Any = None, *, dx: float = 1, dim: int = -1) -> Any:
    """The running integral of samples by the rule of trapezoids."""
    areas = means(y, x, dx, dim)
    return meta.cumsum(areas, dim, areas.dtype)


def chunk_cat(tensors: Any, dim: int, num_chunks: int) -> Any:
    """Cut every tensor into rows of parts, fill up with zeros, and join part by part."""
    joined, dim = [], axis_of(tensors[0], dim)
    for t in tensors:
        size = -(-t.shape[dim] // num_chunks)
        missing = size * num_chunks - t.shape[dim]
        widths = [(0, missing if i == dim else 0) for i in range(t.ndim)]
        full = meta.pad(t, widths) if missing else t
        joined.append(meta.reshape(full, (*t.shape[:dim], num_chunks, -1)))
    return meta.concat(tuple(joined), dim + 1)


ADAPTERS = {
    "_chunk_cat": chunk_cat,
    "block_diag": block_diag,
    "broadcast_shapes": lambda *shapes: meta.zeros(np.broadcast_shapes(*shapes)).shape,
    "broadcast_tensors": broadcast_tensors,
    "cartesian_prod": cartesian_prod,
    "cat": cat,
    "column_stack": column_stack,
    "combinations": combinations,
    "cumulative_trapezoid": cumulative_trapezoid,
    "diff": diff,
    "dstack": stacked(3, 2),
    "hstack": stacked(1, 1),
    "meshgrid|list_of_tensors": meshgrid,
    "meshgrid|variadic_tensors": meshgrid,
    "stack": lambda tensors, dim=0: meta.stack(tuple(tensors), dim),
    "trapezoid": trapezoid,
    "trapz": trapezoid,
    "vstack": stacked(2, 0),
}
