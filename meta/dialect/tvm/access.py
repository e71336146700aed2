"""How the stages of a CPU kernel walk through memory: the questions that `schedule_cpu` asks.

To add one, write a function of a `Stage`.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from meta.dialect.tvm.stages import Stage, at_axes, uses

TILES = (32, 16, 8)
"""Sides of the square tile in which a transposing copy is done, the fastest first."""
MAX_WIDTH = 256
"""Elements of the widest vector, which is many of the processor's."""


def contiguous(stage: Stage, axis: tirx.Var) -> bool:
    """Whether ``axis`` walks along the last dimension of something that is being reduced."""
    reduced = stage.axes[len(stage.spatial) :]
    return any(
        bool(indices)
        and uses(indices[-1], axis)
        and any(uses(index, r) for index in indices for r in reduced)
        for accesses in stage.loads.values()
        for indices in accesses
    )


def flat_axes(stage: Stage) -> int:
    """How many of the last axes may be one loop: every access walks along them or ignores them.

    So is the plane of an image that is shifted and scaled by channel.
    """
    for count in range(len(stage.axes), 1, -1):
        last, extents = stage.axes[-count:], stage.spatial[-count:]
        if all(
            _walks(buffer, indices, last, extents)
            or not any(uses(i, a) for i in indices for a in last)
            for buffer, accesses in stage.loads.items()
            for indices in accesses
        ):
            return count
    return 1


def _walks(
    buffer: tirx.Var, indices: list[Any], axes: list[tirx.Var], extents: list[int | None]
) -> bool:
    """Whether an access is to consecutive elements along all of ``axes``."""
    n = len(axes)
    return (
        _extents(buffer)[-n:] == extents
        and at_axes(indices[-n:], axes)
        and not any(uses(i, a) for i in indices[:-n] for a in axes)
    )


def is_float32(stage: Stage) -> bool:
    """Whether all arrays of a stage are float32; single elements may be of any type."""
    arrays = [stage.buffer, *(b for b, i in stage.loads.items() if any(map(_varies, i)))]
    return all(str(b.dtype) == "float32" for b in arrays)


def _varies(indices: list[Any]) -> bool:
    return not all(isinstance(index, tirx.IntImm) for index in indices)


def same_address(indices: list[Any], axes: list[tirx.Var]) -> bool:
    """Whether an access is at the element that is written, or at a constant place."""
    return not _varies(indices) or at_axes(indices, axes)


def is_flat(stage: Stage) -> bool:
    """Whether all axes may be one loop: every array that is read at the place that is written has
    the shape of the result. One that was padded behind its elements has not, nor the first part of
    another one.
    """
    return all(
        not _varies(indices) or (at_axes(indices, stage.axes) and _extents(buffer) == stage.spatial)
        for buffer, accesses in stage.loads.items()
        for indices in accesses
    )


def _extents(buffer: tirx.Var) -> list[int | None]:
    return [d.value if isinstance(d, tirx.IntImm) else None for d in buffer.ty.shape]


def vector_width(stage: Stage, lanes: int) -> int | None:
    """The least multiple of ``lanes``, if a small one, that cuts the array, seen as one loop, into
    vectors of adjacent elements.

    TVM only sees that elements are adjacent if a vector is a whole number of the blocks that the
    last axes make, or the other way round: of kernels of 3 x 3, one of 16 lanes would be gathered.
    """
    extents = [e for e in stage.spatial if e is not None]
    blocks = [math.prod(extents[i:]) for i in range(len(extents))]
    for width in range(lanes, MAX_WIDTH + 1, lanes):
        if all(width % block == 0 or block % width == 0 for block in blocks):
            return width if stage.static and stage.volume % width == 0 else None
    return None


def along_last(stage: Stage, lanes: int) -> bool:
    """Whether the last axis is a number of vectors of ``lanes``, and every access walks along it in
    its own last dimension, as a bias does, or ignores it.
    """
    extent, axis = stage.spatial[-1], stage.axes[-1]
    return (
        extent is not None
        and extent % lanes == 0
        and all(
            not any(uses(i, axis) for i in indices[:-1])
            and (not indices or indices[-1].same_as(axis) or not uses(indices[-1], axis))
            for accesses in stage.loads.values()
            for indices in accesses
        )
    )


def transposed(stage: Stage) -> tuple[int, int] | None:
    """The axis that walks along the last dimension of an input, if not the innermost; the tile."""
    for accesses in stage.loads.values():
        for indices in accesses:
            if not indices or uses(indices[-1], stage.axes[-1]):
                continue
            if not any(uses(index, stage.axes[-1]) for index in indices[:-1]):
                continue
            for position, axis in enumerate(stage.axes[:-1]):
                extents = (stage.spatial[position], stage.spatial[-1])
                tile = next((t for t in TILES if all((e or 1) % t == 0 for e in extents)), None)
                if tile is not None and uses(indices[-1], axis):
                    return position, tile
    return None
