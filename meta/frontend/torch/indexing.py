"""Reading and writing elements by arrays of positions.

TVM's importer takes arrays of positions beside a whole axis (``x[:, i, j]``) for independent of
each other, where torch broadcasts them to each other, and writes only where every axis has one.
Relax indexes leading axes: here others are moved there, and back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tvm import relax


def index(node: Any, importer: Any) -> Any:
    """``x[i, ..., :, j]``."""
    x, at = importer.env[node.args[0]], _positions(node, importer)
    if len(at) == 1:
        return importer._index_tensor(node)
    rest, before = _axes(x.ty.ndim, at)
    leading = _permuted(importer, x, [*at, *rest])
    found = importer.block_builder.emit(relax.op.index_tensor(leading, [*at.values()]))
    width = found.ty.ndim - len(rest)
    every = range(found.ty.ndim)
    order = [*every[width : width + before], *every[:width], *every[width + before :]]
    return _permuted(importer, found, order)


def index_put(node: Any, importer: Any) -> Any:
    """``x[i, ..., :, j] = values``, or ``+=``."""
    emit = importer.block_builder.emit
    x, at = importer.env[node.args[0]], _positions(node, importer)
    rest, before = _axes(x.ty.ndim, at)
    # Relax wants positions for every axis: for whole ones, all that there are.
    extents = [x.ty.shape.values[a] for a in rest]
    positions = [
        emit(relax.op.reshape(i, [*i.ty.shape.values, *(1 for _ in rest)])) for i in at.values()
    ]
    for k, extent in enumerate(extents):
        every = emit(relax.op.arange(0, extent, 1, "int64"))
        positions.append(emit(relax.op.reshape(every, [extent, *(1 for _ in rest[k + 1 :])])))
    indexed = _broadcast([i.ty.shape.values for i in at.values()])
    shape = [*extents[:before], *indexed, *extents[before:]]
    values = emit(relax.op.broadcast_to(importer.env[node.args[2]], shape))
    axes = range(len(shape))
    order = [*axes[before : before + len(indexed)], *axes[:before], *axes[before + len(indexed) :]]
    accumulate = node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False)
    moved = [*at, *rest]
    written = relax.op.index_put(
        _permuted(importer, x, moved),
        relax.Tuple(positions),
        _permuted(importer, values, order),
        accumulate,
    )
    return _permuted(importer, emit(written), [moved.index(a) for a in range(x.ty.ndim)])


def _positions(node: Any, importer: Any) -> dict[int, Any]:
    """Return the arrays of positions by axis."""
    return {a: importer.env[i] for a, i in enumerate(node.args[1]) if i is not None}


def _axes(ndim: int, at: Collection[int]) -> tuple[list[int], int]:
    """Return the axes without positions, and how many of them are before the positions' axes in
    torch's result: those of positions are first unless the axes indexed are neighbours.
    """
    neighbours = max(at) - min(at) + 1 == len(at)
    return [a for a in range(ndim) if a not in at], min(at) if neighbours else 0


def _broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the extents that shapes have together."""
    ndim = max(map(len, shapes))
    extents: list[Any] = [1] * ndim
    for shape in shapes:
        for k, extent in enumerate(shape, ndim - len(shape)):
            if getattr(extent, "value", extent) != 1:
                extents[k] = extent
    return extents


def _permuted(importer: Any, x: Any, axes: Sequence[int]) -> Any:
    if list(axes) == sorted(axes):
        return x
    return importer.block_builder.emit(relax.op.permute_dims(x, list(axes)))
