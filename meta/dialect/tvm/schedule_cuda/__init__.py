"""Our schedule of a PrimFunc on NVIDIA GPUs: our own kernels where we know better, else defaults.

Stages that are cheap are inlined. What remains is covered by kernels of our own rules, written out
as loops over threads: `injective` (every thread its own elements), and others. A function that they
do not cover is left to TVM's rules and to one kernel for each stage (`default`).

To add a rule, write a function of stages that returns the statement of a kernel, or None, and call
it in `_own`.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target

from meta.dialect.tvm import alignment
from meta.dialect.tvm.inlining import inline
from meta.dialect.tvm.lower import NO_ALIAS
from meta.dialect.tvm.schedule_cuda import default, emit, injective, walk
from meta.dialect.tvm.stages import Stage, blocks_of, stage_of

RULES = (default, emit, injective, walk)
"""The modules that decide what becomes of a function."""


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return ``function`` with everything bound to threads; what it computes is unchanged."""
    own = _own(function)
    return alignment.required(default.schedule(function, target) if own is None else own)


def _own(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the function as kernels of our own rules, None if they do not cover it."""
    no_alias = function.attrs is not None and NO_ALIAS in function.attrs
    sch = s_tir.Schedule(function, error_render_level="none")
    if any(stage_of(sch, block) is None for block in blocks_of(sch)):
        return None
    inline(sch, function, no_alias)
    stages: list[Stage] = []
    values: list[Any] = []
    for block in blocks_of(sch):
        stage = stage_of(sch, block)
        if stage is None:
            return None
        stages.append(stage)
        values.append(sch.get(block).body.value)
    if not stages:
        return None
    kernel = injective.kernel(stages, values, not no_alias)
    return None if kernel is None else _with_body(sch.mod["main"], kernel)


def _with_body(function: tirx.PrimFunc, body: Any) -> tirx.PrimFunc:
    root = function.body.block
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, root.alloc_buffers, [], {})
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc(function.params, realize, function.ret_type, function.attrs)
