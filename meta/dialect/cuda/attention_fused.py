"""The gradient of an attention in float32 whose query, key and value are parts of one array: it is
written where the parts belong.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.attention import PARTS, backward
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER
from meta.op.core.call import CallValues


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
    if layout != HEADS_LATER or key != query or value != query:
        raise Unsupported("made for heads behind the steps, as many of keys as of queries")
    batch, steps, heads, width = query.static_shape
    joined = (batch, steps, PARTS * heads * width)
    if axis % result.ndim != result.ndim - 1 or result.shape != joined:
        raise Unsupported("the parts are not joined row by row")
    call = CallValues(
        op.scaled_dot_product_attention_dx,
        (query, key, value, mask, y, logsumexp, dy, causal, scale, layout),
        device,
    )
    return backward(call, joined=True)
