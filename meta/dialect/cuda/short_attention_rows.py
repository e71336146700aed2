"""Attention over short sequences whose query, key and value are parts of one array's rows, as a
joint projection gives them: read where they are.

A part has its heads behind the steps.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, decline_if
from meta.dialect.core.joined_attention import PARTS, ROWS, begins
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.short_attention import FORWARD, Kernels, Places, aligned, require_short
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER

def _parts(rows, sections, at):
    parts = op.split(rows, sections, at)
    return [op.reshape(parts[i], ...) for i in range(PARTS)]


def _alone(rows, sections, at, mask, causal, scale, layout):
    return op.fused_attention(*_parts(rows, sections, at), mask, causal, scale, layout)[0]


def _saved(rows, sections, at, mask, causal, scale, layout):
    found = op.fused_attention(*_parts(rows, sections, at), mask, causal, scale, layout)
    return found[0], found[1]


def _of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, y: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    """Return the launch for parts of rows."""
    starts = begins(rows, sections, at)
    decline_if(layout != HEADS_LATER or y.ndim != 4, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    part, row = heads * width, PARTS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits, f"{y} is no attention of thirds of {rows}")
    call = op.fused_attention.call_values((y, y, y, mask, causal, scale, layout), device)
    require_short(call)
    own, out = (steps * row, width, row), (steps * part, width, part)
    kernels = Kernels(call, FORWARD, Places(own, own, out, out, out))
    masked = mask is not None

    def run(whole: torch.Tensor, *rest: torch.Tensor) -> None:
        flat = aligned(whole).view(-1)
        given = {n: flat[s:] for n, s in zip(("query", "key", "value"), starts, strict=True)}
        given |= {"mask": rest[0]} if masked else {}
        results = dict(zip(("out", "new_lse"), rest[masked:], strict=False))
        kernels.launch(**given, **results)

    return kernels.prepared(run)


@dialect.pattern_op(_alone)
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    return _of_rows(rows, sections, at, mask, causal, scale, layout, result, device)


@dialect.pattern_op(_saved)
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: tuple[TensorType, TensorType], device: Device,
) -> OpEnv:  # fmt: skip
    return _of_rows(rows, sections, at, mask, causal, scale, layout, result[0], device)
