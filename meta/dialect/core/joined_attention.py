"""The gradient of an attention whose query, key and value are parts of one array's rows: what
dialects share that write it where the parts belong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core.dialect import Dialect
from meta.dialect.core.openv import OpEnv, Unsupported
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER
from meta.op.core.call import CallValues

PARTS = 3
"""Query, key and value."""


def _joined(
    query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any, axis: Any,
) -> Any:  # fmt: skip
    given = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    found = op.fused_attention_dx(*given)
    return op.concat(tuple(op.reshape(found[i], ...) for i in range(PARTS)), axis)


def register(dialect: Dialect, make: Callable[[CallValues], OpEnv]) -> None:
    """Register a dialect's kernel: ``make`` returns what fills one array with all gradients."""

    def fused_attention_dx_joined(
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
        args = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
        return make(CallValues(op.fused_attention_dx, args, device))

    dialect.pattern_op(_joined)(fused_attention_dx_joined)
