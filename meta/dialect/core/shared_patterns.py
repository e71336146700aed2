"""Convolutions over two axes with what follows them, bias, a tensor added, relu: the patterns that
dialects share which have kernels for all of it.

Attention whose query, key and value are parts of one array's rows, as a joint projection gives
them: what dialects share that read the parts where they are, and write gradients where they belong.
Which dialects have masks alone: `require_masks_only`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core.dialect import Dialect
from meta.dialect.core.openv import OpEnv, Unsupported, decline_if, require_static
from meta.ir.types import TensorType
from meta.op.attention import HEADS_LATER
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis
from meta.op.core.slot import Ints
from meta.op.shapes import split_bounds

Maker = Callable[[CallValues, bool, bool], OpEnv]
"""By a call of `conv2d`, whether a tensor is added, and whether relu follows. Returns what takes x,
w, b, z if one is added, and y, which it fills with relu(convolution + b + z).
"""


def _biased(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: Any, layout: Any,
    kernel_layout: Any, out_layout: Any, axis: Any,
) -> Any:  # fmt: skip
    y = op.conv2d.plain(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return op.bias_add(y, b, axis)


def _added(
    x: Any, w: Any, b: Any, z: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
    layout: Any, kernel_layout: Any, out_layout: Any, axis: Any,
) -> Any:  # fmt: skip
    options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
    return op.add(_biased(x, w, b, *options, axis), z)


def _rectified(describes: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pattern with relu behind it, which captures the same."""

    @wraps(describes)
    def described(**captured: Any) -> Any:
        return op.relu(describes(**captured))

    return described


def register_conv_epilogues(dialect: Dialect, make: Maker) -> None:
    """Register a dialect's kernels of four patterns: with a tensor added or not, relu or not."""
    for relu in (False, True):
        for adds, describes in ((False, _biased), (True, _added)):
            name = "conv2d_bias" + "_add" * adds + "_relu" * relu
            _define(dialect, name, _rectified(describes) if relu else describes, make, relu)


def _define(
    dialect: Dialect, name: str, describes: Callable[..., Any], make: Maker, relu: bool
) -> None:
    def made(
        x: TensorType, w: TensorType, stride: Ints, padding: Ints, dilation: Ints, groups: int,
        layout: str, kernel_layout: str, out_layout: str, axis: int, result: TensorType,
        device: Device, z: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        if axis % result.ndim != out_layout.index("C"):
            raise Unsupported("the bias is not added to the channels")
        if z is not None and z != result:
            raise Unsupported(f"what is added is not of the convolution's type {result}")
        options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
        call = op.conv2d.call_values((x, w, *options), device)
        return make(call, z is not None, relu)

    dialect.pattern_op(describes, name=name)(made)


THIRDS = 3
"""Query, key and value."""
ROWS = 2
"""The axis of rows along which they are cut."""


def require_masks_only(call: CallValues) -> None:
    """Raise Unsupported for an attention with dropout, a window, or slopes."""
    a = call.args
    decline_if(a.dropout_key is not None, "weights are dropped by a key")
    decline_if(a.window is not None, "queries look at a window of keys")
    decline_if(a.slopes is not None, "scores fall by slopes")


def split_offsets(rows: TensorType, sections: Any, at: int) -> tuple[int, ...]:
    """Return where the parts of a split begin, in elements of a row.

    Raises Unsupported where they are no thirds of the rows [batch, steps, ...].
    """
    require_static(rows)
    cuts = rows.ndim > ROWS and normalize_axis(at, rows.ndim) == ROWS
    decline_if(not cuts, "the rows are not what is split")
    bounds = split_bounds(rows.static_shape[ROWS], sections)
    third, rest = divmod(rows.static_shape[ROWS], THIRDS)
    fits = not rest and len(bounds) == THIRDS and all(e - b == third for b, e in bounds)
    decline_if(not fits, "the parts are not thirds of the rows")
    inner = prod(rows.static_shape[ROWS + 1 :])
    return tuple(begin * inner for begin, _ in bounds)


def split_rows(rows: Any, sections: Any, at: Any) -> list[Any]:
    """A pattern: query, key and value, as parts of rows."""
    parts = op.split(rows, sections, at)
    return [op.reshape(parts[i], ...) for i in range(THIRDS)]


def attention_pattern(
    rows: Any, sections: Any, at: Any, mask: Any, causal: Any, scale: Any, layout: Any
) -> Any:
    """A pattern: the result, without what its gradient needs."""
    return op.fused_attention(*split_rows(rows, sections, at), mask, causal, scale, layout)[0]


def saved_attention_pattern(
    rows: Any, sections: Any, at: Any, mask: Any, causal: Any, scale: Any, layout: Any
) -> Any:
    """A pattern: the result, and the logsumexp."""
    found = op.fused_attention(*split_rows(rows, sections, at), mask, causal, scale, layout)
    return found[0], found[1]


def attention_gradient_pattern(
    rows: Any, sections: Any, at: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any, axis: Any,
) -> Any:  # fmt: skip
    """A pattern: the gradient of the rows."""
    given = (*split_rows(rows, sections, at), mask, y, logsumexp, dy, causal, scale, layout)
    return joined_rows(op.fused_attention_dx(*given), axis)


def attention_gradients_pattern(
    rows: Any, sections: Any, at: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any, axis: Any,
) -> Any:  # fmt: skip
    """A pattern: the gradients of the rows and of the mask."""
    given = (*split_rows(rows, sections, at), mask, y, logsumexp, dy, causal, scale, layout)
    return joined_rows(op.fused_attention_dx(*given), axis), op.fused_attention_dmask(*given)


def gradients_with_mask_pattern(
    query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any,
) -> Any:  # fmt: skip
    """A pattern: the gradients of query, key, value, and of the mask."""
    given = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    found = op.fused_attention_dx(*given)
    return found[0], found[1], found[2], op.fused_attention_dmask(*given)


def joined_rows(found: Any, axis: Any) -> Any:
    """A pattern: the gradients of the parts, joined as rows."""
    views = tuple(op.reshape(found[i], ...) for i in range(THIRDS))
    return op.concat(views, axis) | op.stack(tuple(found[i] for i in range(THIRDS)), axis)


def _joined(
    query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any, axis: Any,
) -> Any:  # fmt: skip
    given = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    found = op.fused_attention_dx(*given)
    return joined_rows(found, axis)


def register_packed_attention(dialect: Dialect, make: Callable[[CallValues], OpEnv]) -> None:
    """Register a dialect's kernel: ``make`` returns what fills one array with all gradients."""

    def fused_attention_dx_joined(
        query: TensorType, key: TensorType, value: TensorType, mask: Any, y: TensorType,
        logsumexp: TensorType, dy: TensorType, causal: bool, scale: float | None, layout: str,
        axis: int, result: TensorType, device: Device,
    ) -> OpEnv:  # fmt: skip
        if layout != HEADS_LATER or key != query or value != query:
            raise Unsupported("made for heads behind the steps, as many of keys as of queries")
        batch, steps, heads, width = query.static_shape
        joined = (batch, steps, THIRDS * heads * width)
        if axis % result.ndim != result.ndim - 1 or result.shape != joined:
            raise Unsupported("the parts are not joined row by row")
        args = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
        return make(op.fused_attention_dx.call_values(args, device))

    dialect.pattern_op(_joined)(fused_attention_dx_joined)
