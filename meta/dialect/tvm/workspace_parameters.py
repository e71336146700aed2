"""Turns the intermediate arrays of a scheduled CUDA function into parameters; see `workspace`."""

from __future__ import annotations

from tvm import tirx

from meta.base.dtype import TO_TORCH
from meta.dialect.tvm.lower import any_strides_if_empty, with_root
from meta.dialect.tvm.workspace import Workspace

GLOBAL = ("", "global")


def as_parameters(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[Workspace, ...]]:
    """Turn a scheduled function's intermediate arrays in global memory into last parameters.

    Those of dynamic shape stay as they are.
    """
    root = function.body.block
    moved = [buffer for buffer in root.alloc_buffers if _movable(buffer.ty)]
    if not moved:
        return function, ()
    kept = [b for b in root.alloc_buffers if not any(b.same_as(other) for other in moved)]
    function = with_root(function, root.body, kept)
    parameters = [*function.params, *moved]
    changed = tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs)
    workspaces = tuple(Workspace(_extents(b.ty), str(b.ty.dtype.dtype)) for b in moved)
    return any_strides_if_empty(changed), workspaces


def _movable(kind: tirx.buffer.BufferType) -> bool:
    static = all(isinstance(extent, tirx.IntImm) for extent in kind.shape)
    return static and kind.storage_scope in GLOBAL and str(kind.dtype.dtype) in TO_TORCH


def _extents(kind: tirx.buffer.BufferType) -> tuple[int, ...]:
    return tuple(extent.value for extent in kind.shape)
