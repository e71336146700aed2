"""The gradient of an attention whose query, key and value are parts of one array: all in one graph,
which writes the parts where they belong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.attention import Attention, backward, described
from meta.dialect.cudnn.graph import Graph, Operand
from meta.dialect.cudnn.plans import plan
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

PARTS = 3


def _describe(graph: Graph, a: Attention) -> None:
    """Describe gradients of which each begins its rows where the one before it ends."""
    row = PARTS * a.query.dims[1] * a.query.dims[3]
    backward(graph, a, tuple(_in_rows(o, row) for o in (a.query, a.key, a.value)))


def _in_rows(part: Operand, row: int) -> Operand:
    """Return a compact operand (batch, heads, steps, width) as a part of rows of all heads."""
    _, _, steps, width = part.dims
    return replace(part, strides=(steps * row, width, row, 1))


def _joined(query, key, value, mask, y, logsumexp, dy, causal, scale, layout, axis):
    given = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    found = op.scaled_dot_product_attention_dx(*given)
    return op.concatenate(tuple(op.reshape(found[i], ...) for i in range(PARTS)), axis)


@dialect.pattern_op(_joined)
def scaled_dot_product_attention_dx_joined(
    query: TensorType, key: TensorType, value: TensorType, mask: Any, y: TensorType,
    logsumexp: TensorType, dy: TensorType, causal: bool, scale: float | None, layout: str,
    axis: int, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    if mask is not None:
        raise Unsupported("made for an attention without a mask")
    if layout != "BSHD" or key != query or value != query:
        raise Unsupported("made for heads behind the steps, as many of keys as of queries")
    batch, steps, heads, width = query.static_shape
    row = heads * width
    if axis % result.ndim != result.ndim - 1 or result.shape != (batch, steps, PARTS * row):
        raise Unsupported("the parts are not joined row by row")
    call = CallValues(
        op.scaled_dot_product_attention_dx,
        (query, key, value, mask, y, logsumexp, dy, causal, scale, layout),
        device,
    )
    run = plan(_describe, described(call), dtype=query.dtype, device=device.ordinal)
    return OpEnv(_into_rows(run, row), allocates=False, workspace=lambda: run.workspace)


def _into_rows(run: Callable[..., None], row: int) -> Callable[..., None]:
    def launch(*tensors: torch.Tensor) -> None:
        *inputs, out = tensors
        run(*inputs, *(out.narrow(-1, i * row, row) for i in range(PARTS)))

    return launch
