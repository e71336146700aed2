"""Attention over short sequences whose query, key and value are parts of one array's rows, as a
joint projection gives them: read where they are.

A part has its heads behind the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, decline_if
from meta.dialect.core.knobs import tunable
from meta.dialect.core.packed_qkv import (
    PARTS,
    ROWS,
    alone,
    begins,
    gradient,
    gradients,
    saved,
)
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.short_attention import (
    BACKWARD,
    FORWARD,
    Kernels,
    Places,
    Strides,
    aligned,
    require_short,
    summed_up,
)
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis


def _call(
    rows: TensorType, y: TensorType, mask: Any, causal: bool, scale: float | None, layout: str,
    device: Device,
) -> tuple[CallValues, Strides, Strides]:  # fmt: skip
    """Return the call on compact parts, and the strides of parts of rows and of compact ones."""
    decline_if(layout != HEADS_LATER or y.ndim != 4, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    part, row = heads * width, PARTS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits or y.dtype != rows.dtype, f"{y} is no attention of thirds of {rows}")
    call = op.fused_attention.call_values((y, y, y, mask, causal, scale, layout), device)
    require_short(call)
    return call, (steps * row, width, row), (steps * part, width, part)


def _parts(whole: torch.Tensor, starts: Sequence[int]) -> dict[str, torch.Tensor]:
    flat = aligned(whole).view(-1)
    return {n: flat[s:] for n, s in zip(("query", "key", "value"), starts, strict=True)}


def _of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, y: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    """Return the launch for parts of rows."""
    starts = begins(rows, sections, at)
    call, of_rows, of_parts = _call(rows, y, mask, causal, scale, layout, device)
    kernels = Kernels(call, FORWARD, Places(of_rows, of_rows, of_parts, of_parts, of_parts))
    masked = mask is not None

    def run(whole: torch.Tensor, *rest: torch.Tensor) -> None:
        given = _parts(whole, starts) | ({"mask": rest[0]} if masked else {})
        results = dict(zip(("out", "new_lse"), rest[masked:], strict=False))
        kernels.launch(**given, **results)

    return kernels.prepared(run)


@dialect.pattern_op(alone)
@tunable
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    return _of_rows(rows, sections, at, mask, causal, scale, layout, result, device)


@dialect.pattern_op(saved)
@tunable
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: tuple[TensorType, TensorType], device: Device,
) -> OpEnv:  # fmt: skip
    return _of_rows(rows, sections, at, mask, causal, scale, layout, result[0], device)


def _gradient(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: TensorType, device: Device, by_mask: bool,
) -> OpEnv:  # fmt: skip
    """Return the launch of the gradient of rows, and of the mask if that is wanted."""
    starts = begins(rows, sections, at)
    decline_if(normalize_axis(axis, result.ndim) != ROWS, "gradients are not joined as rows")
    call, of_rows, of_parts = _call(rows, y, mask, causal, scale, layout, device)
    where = Places(of_rows, of_rows, of_rows, of_rows, of_parts)
    kernels = Kernels(call, BACKWARD, where, GRADIENTS=1, DMASK=int(by_mask))
    part = prod(y.static_shape[ROWS:])
    partial, finish, size = summed_up(kernels, mask) if by_mask else (None, None, 0)
    masked = mask is not None

    def run(whole: torch.Tensor, *rest: torch.Tensor) -> None:
        given = _parts(whole, starts) | ({"mask": rest[0]} if masked else {})
        _, logsumexp, dy, joined, *others = rest[masked:]
        given |= {"logsumexp": logsumexp, "dy": aligned(dy)}
        flat = joined.view(-1)
        results = {n: flat[i * part :] for i, n in enumerate(("out", "dkey", "dvalue"))}
        if partial is None or finish is None:
            kernels.launch(**given, **results)
            return
        sums = partial(joined.device)
        kernels.launch(**given, **results, dmask=sums)
        finish(sums, others[0])

    return kernels.prepared(run, workspace=size)


@dialect.pattern_op(gradient)
@tunable
def attention_of_rows_dx(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    given = rows, sections, at, mask, y, causal, scale, layout, axis, result, device
    return _gradient(*given, by_mask=False)


@dialect.pattern_op(gradients)
@tunable
def attention_of_rows_dx_dmask(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: tuple[TensorType, TensorType],
    device: Device,
) -> OpEnv:  # fmt: skip
    given = rows, sections, at, mask, y, causal, scale, layout, axis, result[0], device
    return _gradient(*given, by_mask=True)
