"""Attention over short sequences whose query, key and value are parts of one array's rows, as a
joint projection gives them: read where they are.

A part has its heads behind the steps. Windows of an image that differ in what is added to their
scores, as shifted ones do, are heads of the operator, which a program transposes and merges; here
they are read, and the result is written, in the places that they had before.
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
from meta.op.attention import HEADS_FIRST, HEADS_LATER
from meta.op.core.call import CallValues

WINDOWED = (0, 1, 3, 2, 4)
"""From [images, windows, steps, heads, width] to the heads before the steps."""
SWAPPED = (0, 2, 1, 3)


def _parts(rows, sections, at):
    parts = op.split(rows, sections, at)
    return [op.reshape(parts[i], ...) for i in range(PARTS)]


def _alone(rows, sections, at, mask, causal, scale, layout):
    return op.fused_attention(*_parts(rows, sections, at), mask, causal, scale, layout)[0]


def _saved(rows, sections, at, mask, causal, scale, layout):
    found = op.fused_attention(*_parts(rows, sections, at), mask, causal, scale, layout)
    return found[0], found[1]


def _windows(rows, sections, at, apart, axes, merged, mask, causal, scale, layout, back):
    parts = op.split(rows, sections, at)
    heads = [
        op.reshape(op.permute_dims(op.reshape(parts[i], apart), axes), merged)
        for i in range(PARTS)
    ]
    y = op.fused_attention(*heads, mask, causal, scale, layout)[0]
    return op.permute_dims(op.reshape(y, ...), back)


def _launches(
    call: CallValues, rows: TensorType, starts: tuple[int, ...], windows: int, heads: int
) -> OpEnv:
    """Return the launch for a call whose query, key and value are parts of rows; each batch has so
    many windows, and each of these so many heads.
    """
    require_short(call)
    batches, row = rows.static_shape[:ROWS], prod(rows.static_shape[ROWS:])
    part, steps = row // PARTS, batches[1]
    width = part // heads
    own = (windows * steps * row, steps * row, width, row, heads)
    out = (windows * steps * part, steps * part, width, part, heads)
    kernels = Kernels(call, FORWARD, Places(own, own, out, out, out))
    masked = call.args.mask is not None

    def run(whole: torch.Tensor, *rest: torch.Tensor) -> None:
        flat = aligned(whole).view(-1)
        given = {n: flat[s:] for n, s in zip(("query", "key", "value"), starts, strict=True)}
        given |= {"mask": rest[0]} if masked else {}
        results = dict(zip(("out", "new_lse"), rest[masked:], strict=False))
        kernels.launch(**given, **results)

    return kernels.prepared(run)


def _of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, y: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    decline_if(layout != HEADS_LATER or y.ndim != 4, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    row = PARTS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits, f"{y} is no attention of thirds of {rows}")
    arguments = (y, y, y, mask, causal, scale, layout)
    return _launches(op.fused_attention.call_values(arguments, device), rows, starts, 1, heads)


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


@dialect.pattern_op(_windows)
def attention_of_windows(
    rows: TensorType, sections: Any, at: int, apart: Any, axes: Any, merged: Any, mask: Any,
    causal: bool, scale: float | None, layout: str, back: Any, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    placed = layout == HEADS_FIRST and tuple(axes) == WINDOWED and tuple(back) == SWAPPED
    decline_if(not placed or len(apart) != 5, "windows are not merged with their heads")
    images, windows, steps, heads, width = apart
    fits = rows.static_shape[:ROWS] == (images * windows, steps)
    whole = prod(rows.static_shape[ROWS:]) == PARTS * heads * width
    same = result.static_shape == (images * windows, steps, heads, width)
    merges = tuple(merged) == (images, windows * heads, steps, width)
    decline_if(not (fits and whole and same and merges), "windows are not parts of the rows")
    one = result.with_shape(tuple(merged))
    call = op.fused_attention.call_values((one, one, one, mask, causal, scale, layout), device)
    return _launches(call, rows, starts, windows, heads)
