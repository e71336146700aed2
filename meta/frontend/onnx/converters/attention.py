"""Converters of attention: one call of `scaled_dot_product_attention` where it says the same.

What it does not have (a soft cap, windows, lengths of a padded cache, the scores as a result) is
left to the function that ONNX defines the operator by.
"""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, is_static
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx

FLOAT = 1
"""The precision of the softmax that `scaled_dot_product_attention` has at least."""


def heads(x, count):
    """[batch, length, heads * size] as [batch, heads, length, size]; four axes stay."""
    if x.ndim == 4:
        return x
    if not count:
        raise Unconvertible("inputs of 3 axes need q_num_heads and kv_num_heads")
    batch, length, size = x.shape
    return op.permute_dims(op.reshape(x, (batch, length, count, size // count)), (0, 2, 1, 3))


@onnx("Attention", op.fused_attention, op.concat, ignore=("qk_matmul_output_mode",))
def attention(
    query,
    key,
    value,
    mask=None,
    past_key=None,
    past_value=None,
    lengths=None,
    *,
    is_causal,
    kv_num_heads,
    left_window_size,
    q_num_heads,
    right_window_size,
    scale,
    softcap,
    softmax_precision,
    call,
):
    """(result, keys, values), the keys and values behind those of the past."""
    windows = (left_window_size, right_window_size)
    if softcap or lengths is not None or any(w not in (None, -1) for w in windows):
        return NotImplemented
    if call.results > 3 or softmax_precision not in (None, FLOAT):
        return NotImplemented
    three = query.ndim == 3
    query = heads(query, q_num_heads)
    key, value = heads(key, kv_num_heads), heads(value, kv_num_heads)
    present = key, value
    if past_key is not None:
        present = op.concat((past_key, key), 2), op.concat((past_value, value), 2)
    extents = (query.shape[2], present[0].shape[2])
    if mask is not None and (mask.ndim < 2 or mask.shape[-1] != extents[1]):
        return NotImplemented
    causal = bool(is_causal)
    if causal and (past_key is not None or mask is not None):
        if not is_static(extents):
            return NotImplemented
        offset = extents[1] - key.shape[2]
        mask, causal = _with_causal(mask, extents, offset, query.dtype, call), False
    if mask is not None and mask.dtype != "bool":
        mask = cast_to(mask, query.dtype)
    y = op.scaled_dot_product_attention(
        query,
        *present,
        mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if three:
        batch, count, length, size = y.shape
        y = op.reshape(op.permute_dims(y, (0, 2, 1, 3)), (batch, length, count * size))
    return y, *present


def _with_causal(mask, extents, offset, dtype, call):
    """Return a mask with which query i does not look beyond key i + offset."""
    allowed = np.tri(*extents, k=offset, dtype=bool)
    if mask is None or mask.dtype == "bool":
        seen = constant(allowed, "bool", call)
        return seen if mask is None else op.logical_and(mask, seen)
    return op.add(cast_to(mask, dtype), constant(np.where(allowed, 0, -np.inf), dtype, call))
