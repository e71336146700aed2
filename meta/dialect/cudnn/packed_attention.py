"""Attention whose query, key and value are parts of one array's rows, as a joint projection gives
them: cuDNN reads them where they are, and writes gradients that are joined alike.

A part has its heads behind the steps: of rows [b, s, ...] with 3 * heads * width elements, those of
a third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, decline_if
from meta.dialect.core.packed_qkv import PARTS, ROWS, alone, begins, gradient, saved
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.attention import (
    Attention,
    arguments,
    described_by,
    in_rows,
    sdpa,
    sdpa_backward,
)
from meta.dialect.cudnn.graph import Graph
from meta.dialect.cudnn.plans import Run, with_plan
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER
from meta.op.core.check import normalize_axis

ALIGNED = 8
"""What the elements of a head are a multiple of, and so where parts begin."""


def _sdpa_alone(graph: Graph, a: Attention) -> None:
    """Describe the result without what its gradient needs."""
    y, _ = graph.node.sdpa(**arguments(graph, a), generate_stats=False)
    graph.result(y, a.result)


def _made(
    describe: Callable[[Graph, Attention], None], rows: TensorType, starts: tuple[int, ...],
    y: TensorType, mask: Any, causal: bool, scale: float | None, layout: str, device: Device,
) -> OpEnv:  # fmt: skip
    """Return what runs a graph. The gradient fills one array, of the shape of the rows."""
    decline_if(mask is not None, "made for an attention without a mask")
    decline_if(layout != HEADS_LATER, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    part, row = heads * width, PARTS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits or y.dtype != rows.dtype, f"{y} is no attention of thirds of {rows}")
    decline_if(width % ALIGNED != 0, f"heads are no multiple of {ALIGNED} elements")
    one = rows.with_shape((batch, steps, heads, width))
    call = op.fused_attention.call_values((one, one, one, None, causal, scale, layout), device)
    compact = described_by(call)
    query, key, value = (in_rows(p, row) for p in (compact.query, compact.key, compact.value))
    described = replace(compact, query=query, key=key, value=value)

    def parts_of(whole: torch.Tensor, starts: Sequence[int]) -> list[torch.Tensor]:
        flat = whole.view(batch, steps, row)
        return [flat.narrow(-1, begin, part) for begin in starts]

    def env(run: Run) -> OpEnv:
        def forward(whole: torch.Tensor, *results: torch.Tensor) -> None:
            run(*parts_of(whole, starts), *results)

        def backward(whole: torch.Tensor, *rest: torch.Tensor) -> None:
            *given, joined = rest
            run(*parts_of(whole, starts), *given, *parts_of(joined, range(0, row, part)))

        launch = backward if describe is sdpa_backward else forward
        return OpEnv(launch, allocates=False, workspace=lambda: run.workspace)

    return with_plan(env, describe, described, dtype=rows.dtype, device=device.ordinal)


@dialect.pattern_op(alone)
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    return _made(_sdpa_alone, rows, starts, result, mask, causal, scale, layout, device)


@dialect.pattern_op(saved)
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: tuple[TensorType, TensorType], device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    return _made(sdpa, rows, starts, result[0], mask, causal, scale, layout, device)


@dialect.pattern_op(gradient)
def attention_of_rows_dx(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    decline_if(normalize_axis(axis, result.ndim) != ROWS, "gradients are not joined as rows")
    return _made(sdpa_backward, rows, starts, y, mask, causal, scale, layout, device)
