"""Our schedule of a PrimFunc on NVIDIA GPUs: our own kernels where we know better, else defaults.

Stages that are cheap are inlined. What remains is covered by kernels of our own rules, written out
as loops over threads: `injective` (every thread its own elements), and others. A function that they
do not cover is left to TVM's rules and to one kernel for each stage (`default`).

To add a rule, write a function of stages that returns the statement of a kernel, or None, and call
it in `_own`.

Rules `ask` for the sizes that they choose by reasoning, so that others can be measured: ``threads``
of a block, or of a row; ``rows`` of a block; ``vector``, the elements of an access; ``items``, the
vectors of a thread; ``slices`` of a reduction; ``ahead``, the accesses under way; ``held``, whether
rows stay in registers. A rule asks when its kernel is written, not while it is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from meta.dialect.core.knobs import Knobs, deciding, forget
from meta.dialect.tvm import cuda_source
from meta.dialect.tvm.configs import knobs_of
from meta.dialect.tvm.schedule_cuda import (
    default,
    in_place,
    injective,
    reductions,
    rows,
    transposes,
    walk,
    windows,
)
from meta.dialect.tvm.schedule_cuda.emit import sequence
from meta.dialect.tvm.schedule_cuda.walk import KernelBlock
from meta.dialect.tvm.stages import SPATIAL, Stage, blocks_of, inline, stage_of

KERNELS = (windows.kernel, rows.kernel, reductions.kernel, transposes.kernel, injective.kernel)
"""What makes kernels of stages: of the parts that are left, and all intermediate arrays."""


def schedule(function: tirx.PrimFunc, target: Target, knobs: Knobs | None = None) -> tirx.PrimFunc:
    """Return ``function`` with everything bound to threads; what it computes is unchanged.

    ``knobs``: in the place of those of the function's configuration.
    """
    with deciding(knobs or knobs_of(function)):
        with target:  # rules ask it how many multiprocessors there are
            own = _own(function)
        if own is None:
            forget()
            own = default.without_bool(default.schedule(function, target))
    return cuda_source.required(cuda_source.with_half_math(own))


def runs_in_place(function: tirx.PrimFunc, target: Target) -> bool:
    """Whether kernels of our own rules run a function whose results overwrite arguments as fast as
    one whose results do not.
    """
    with deciding(knobs_of(function)), target:
        return _own(function) is not None


def _own(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the function as kernels of our own rules, None if they do not cover it."""
    sch = s_tir.Schedule(function, error_render_level="none")
    if any(_kernel_block(sch, block) is None for block in blocks_of(sch)):
        return None
    inline(sch, function)
    parts = [_kernel_block(sch, block) for block in blocks_of(sch)]
    present = [part for part in parts if part is not None and 0 not in part.stage.spatial]
    parameters = set(function.params)
    present = _needed(present, parameters)
    if not present or None in parts or not all(p.stage.static and p.stage.volume for p in present):
        return None
    made = _kernels(present, parameters, in_place.overwriting(function))
    return None if made is None else _with_body(sch.mod["main"], *made)


def _needed(parts: list[KernelBlock], parameters: set[Any]) -> list[KernelBlock]:
    """Return the parts without those that only results without elements were computed from."""
    needed: list[KernelBlock] = []
    read = parameters
    for part in reversed(parts):
        if part.stage.buffer in read:
            needed.insert(0, part)
            read = read | {node.source for node in walk.all_reads(part.value)}
    return needed


def _kernel_block(sch: s_tir.Schedule, block: Any) -> KernelBlock | None:
    stage, statement = stage_of(sch, block), sch.get(block)
    if stage is None and not sch.get_loops(block) and len(statement.iter_vars) == 1:
        stage = _scalar(block, statement)
    if stage is None:
        return None
    init = statement.init
    return KernelBlock(stage, statement.body.value, None if init is None else init.value)


def _scalar(block: Any, statement: s_tir.SBlock) -> Stage | None:
    """Return the stage of a block that computes an array without axes, in no loop."""
    (axis,), store = statement.iter_vars, statement.body
    if not isinstance(store, tirx.BufferStore) or store.indices or axis.iter_type != SPATIAL:
        return None
    return Stage(block, store.buffer, [axis.var], [1], [])


def _kernels(
    parts: list[KernelBlock], parameters: set[Any], overwriting: set[tuple[Any, Any]]
) -> tuple[list[Any], list[Any]] | None:
    """Return the kernels that compute all parts, in the order in which they are to run, and the
    arrays that they need beside the intermediate ones; None if no rule has some part.
    """
    inner = {part.stage.buffer for part in parts} - parameters
    kernels: list[Any] = []
    arrays: list[Any] = []
    groups: list[in_place.Group] = []
    while parts:
        tried = ((rule, rule(parts, inner)) for rule in KERNELS)
        rule, found = next((one for one in tried if one[1] is not None), (None, None))
        if found is None:
            return None
        taken, made, between = found
        groups.append(in_place.Group(taken, rule is rows.kernel and rows.are_apart(taken)))
        kernels += made
        arrays += between
        parts = [part for part in parts if part not in taken]
    return (kernels, arrays) if in_place.safe(groups, inner, overwriting) else None


def _with_body(function: tirx.PrimFunc, kernels: list[Any], arrays: list[Any]) -> tirx.PrimFunc:
    root, body = function.body.block, sequence(kernels)
    buffers = [*_used(root.alloc_buffers, body), *arrays]
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, buffers, [], {})
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc(function.params, realize, function.ret_type, function.attrs)


def _used(buffers: Sequence[Any], body: Any) -> list[Any]:
    """Return the arrays that kernels access; others are in registers now."""
    found: set[Any] = set()
    tvm_ffi.structural_walk(body, (tvm.ir.Var, lambda v: found.add(v)))
    return [buffer for buffer in buffers if buffer in found]
