"""Attention with dropout whose query, key and value are parts of one array's rows, as a joint
projection gives them, in Triton: read where they are, and gradients written where they belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, decline_if
from meta.dialect.core.knobs import tunable
from meta.dialect.core.packed_qkv import PARTS, ROWS, begins, parts_of_rows, rows_of_parts
from meta.dialect.triton import triton_dialect as dialect
from meta.dialect.triton.attention import LEVEL, Attention
from meta.dialect.triton.sequence import launch_sequence
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER
from meta.op.core.check import normalize_axis

_NAMES = "query", "key", "value"


def alone(
    rows: Any, sections: Any, at: Any, mask: Any, causal: Any, scale: Any, layout: Any,
    dropout_key: Any, dropout_p: Any,
) -> Any:  # fmt: skip
    """A pattern: the result, without what its gradient needs."""
    given = *parts_of_rows(rows, sections, at), mask, causal, scale, layout
    return op.fused_attention(*given, dropout_key=dropout_key, dropout_p=dropout_p)[0]


def saved(
    rows: Any, sections: Any, at: Any, mask: Any, causal: Any, scale: Any, layout: Any,
    dropout_key: Any, dropout_p: Any,
) -> Any:  # fmt: skip
    """A pattern: the result, and the logsumexp."""
    given = *parts_of_rows(rows, sections, at), mask, causal, scale, layout
    found = op.fused_attention(*given, dropout_key=dropout_key, dropout_p=dropout_p)
    return found[0], found[1]


def gradient(
    rows: Any, sections: Any, at: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any, dropout_key: Any, dropout_p: Any, axis: Any,
) -> Any:  # fmt: skip
    """A pattern: the gradient of the rows."""
    given = *parts_of_rows(rows, sections, at), mask, y, logsumexp, dy, causal, scale, layout
    found = op.fused_attention_dx(*given, dropout_key=dropout_key, dropout_p=dropout_p)
    return rows_of_parts(found, axis)


def _made(
    rows: TensorType, y: TensorType, mask: Any, causal: bool, scale: float | None, layout: str,
    dropout_key: Any, dropout_p: float, device: Device,
) -> Attention:  # fmt: skip
    """Return the attention of parts of rows; Unsupported if they are none."""
    decline_if(dropout_key is None, "made for attention with dropout")
    decline_if(layout != HEADS_LATER or y.ndim != 4, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    row = PARTS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits or y.dtype != rows.dtype, f"{y} is no attention of thirds of {rows}")
    options = mask, causal, scale, layout, None, None, dropout_key, dropout_p
    return Attention(op.fused_attention.call_values((y, y, y, *options), device), row)


def _parts(whole: torch.Tensor, starts: Sequence[int]) -> dict[str, torch.Tensor]:
    flat = whole.view(-1)
    return {name: flat[start:] for name, start in zip(_NAMES, starts, strict=True)}


def _given(
    starts: Sequence[int], names: Sequence[str], values: Sequence[torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Return a run's tensors by name: the rows' parts, and those that follow."""
    return _parts(values[0], starts) | dict(zip(names, values[1:], strict=False))


@dialect.pattern_op(saved, plevel=dialect.levels(LEVEL))
@tunable
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, dropout_key: Any, dropout_p: float, result: tuple[TensorType, TensorType],
    device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    made = _made(rows, result[0], mask, causal, scale, layout, dropout_key, dropout_p, device)
    forward, launches = made.forward()
    names = [*(["mask"] if mask is not None else []), "dropout_key"]

    def run(*values: torch.Tensor) -> None:
        forward(_given(starts, names, values), *values[1 + len(names) :])

    return launch_sequence(run, *launches)


@dialect.pattern_op(alone, plevel=dialect.levels(LEVEL))
@tunable
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, dropout_key: Any, dropout_p: float, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    made = _made(rows, result, mask, causal, scale, layout, dropout_key, dropout_p, device)
    forward, launches = made.forward()
    names = [*(["mask"] if mask is not None else []), "dropout_key"]
    shape = made.batch, made.heads, made.queries

    def run(*values: torch.Tensor) -> None:
        y = values[-1]
        logsumexp = torch.empty(shape, dtype=torch.float32, device=y.device)
        forward(_given(starts, names, values), y, logsumexp)

    return launch_sequence(run, *launches, workspace=made.statistics)


@dialect.pattern_op(gradient, plevel=dialect.levels(LEVEL))
@tunable
def attention_of_rows_dx(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, dropout_key: Any, dropout_p: float, axis: int,
    result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = begins(rows, sections, at)
    decline_if(normalize_axis(axis, result.ndim) != ROWS, "gradients are not joined as rows")
    made = _made(rows, y, mask, causal, scale, layout, dropout_key, dropout_p, device)
    backward, launches = made.backward()
    names = [*(["mask"] if mask is not None else []), "y", "logsumexp", "dy", "dropout_key"]
    third = made.heads * y.static_shape[3]

    def run(*values: torch.Tensor) -> None:
        results = _parts(values[-1], range(0, PARTS * third, third))
        backward(_given(starts, names, values), *results.values())

    return launch_sequence(run, *launches, workspace=made.statistics)
