"""Attention as an operator of PyTorch's, with one for its gradient: of shared heads of key and
value, Ainslie et al., arXiv:2305.13245, and with a mask that is trained, as windows of images have
it, Liu et al., arXiv:2103.14030.

PyTorch's own forms keep the probabilities for the gradient, or copies of the shared heads; this
keeps query, key and value alone, and the logarithm of a sum for each query. Dropout of the
probabilities is drawn by a key that is an argument, as base operators have it, here as in programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.definitions import define
from meta.op.attention import score_scale
from meta.runtime.ndarray import ndarray


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, window: Any, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the weights of values, and the logsumexp of scores, in at least float32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ _repeated(query, key).mT) * scale
    if is_causal or window is not None:
        left, right = (sum(scores.shape[-2:]) if n < 0 else n for n in window or (-1, -1))
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
        mask = mask.tril(0 if is_causal else right).triu(-left)
    if mask is not None:
        if mask.ndim == 4 and mask.shape[0] not in (1, query.shape[0]):  # again and again
            mask = mask.repeat(query.shape[0] // mask.shape[0], 1, 1, 1)
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    logsumexp = scores.logsumexp(-1)
    nothing = logsumexp[..., None] == -torch.inf  # where a query sees no key
    return (scores - logsumexp[..., None]).exp().masked_fill(nothing, 0), logsumexp


def _repeated(query: Tensor, x: Tensor) -> Tensor:
    """Return key or value, in at least float32, with the heads of query."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _memory(like: Tensor, width: Any, heads_later: bool) -> Tensor:
    """Return memory for an array [b, h, s, width]: in which the heads are behind the steps, or as
    another one lies.
    """
    batch, heads, steps, own = like.shape
    if heads_later:
        return like.new_empty((batch, steps, heads, width)).transpose(1, 2)
    return torch.empty_like(like) if width == own else like.new_empty((batch, heads, steps, width))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    heads_later: bool,
    window: Sequence[int] | None = None,
    dropout_key: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention of query [b, h, s, d] to key and value [b, h / n, t, d], and the logsumexp of its
    scores, [b, h, s]. window, dropout_key, dropout_p: as of `meta.fused_attention`.
    """
    factor = score_scale(scale, query.shape[3])
    weights, logsumexp = _weights(query, key, attn_mask, is_causal, window, factor)
    weights = weights * _dropout(weights, dropout_key, dropout_p)
    result = _memory(query, value.shape[3], heads_later)
    return result.copy_(weights @ _repeated(query, value)), logsumexp


def _dropout(weights: Tensor, key: Tensor | None, p: float) -> Tensor | float:
    """Return what weights are multiplied by: the numbers that programs draw, too."""
    if key is None:
        return 1.0
    seen: Tensor = op.dropout_mask(ndarray(key), tuple(weights.shape), p).torch()
    return seen.to(weights.dtype) / (1 - p)


def _fake_forward(
    query: Tensor, _key: Any, value: Tensor, _mask: Any, _is_causal: Any, _scale: Any,
    heads_later: bool, *_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dtype = torch.promote_types(query.dtype, torch.float32)
    result = _memory(query, value.shape[3], heads_later)
    return result, query.new_empty(query.shape[:3], dtype=dtype)


def _attention_dx(
    dy: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    y: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float | None,
    heads_later: bool,
    trains_mask: bool,
    window: Sequence[int] | None = None,
    dropout_key: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients by query, key and value, and by the mask, if it is trained."""
    factor = score_scale(scale, query.shape[3])
    weights, _ = _weights(query, key, attn_mask, is_causal, window, factor)
    dropped = _dropout(weights, dropout_key, dropout_p)
    slope = dy.to(weights.dtype)
    by_weights = slope @ _repeated(query, value).mT * dropped
    by_scores = weights * (by_weights - (slope * y).sum(-1, keepdim=True))
    dq = by_scores @ _repeated(query, key) * factor
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    found = by_scores.mT @ query.to(weights.dtype) * factor, (weights * dropped).mT @ slope
    dk, dv = (t.reshape(t.shape[0], *groups, *t.shape[2:]).sum(2) for t in found)
    results = zip((query, key, value), (dq, dk, dv), strict=True)
    dq, dk, dv = (_memory(t, t.shape[3], heads_later).copy_(g) for t, g in results)
    if attn_mask is None or not trains_mask:
        return dq, dk, dv, query.new_empty(0)
    if attn_mask.ndim == 4:
        by_scores = by_scores.view(-1, attn_mask.shape[0], *by_scores.shape[1:]).sum(0)
    return dq, dk, dv, by_scores.sum_to_size(attn_mask.shape).to(attn_mask.dtype)


def _fake_backward(
    _dy: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, _y: Tensor,
    _logsumexp: Any, _is_causal: Any, _scale: Any, heads_later: bool, trains_mask: bool, *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (_memory(t, t.shape[3], heads_later) for t in (query, key, value))
    if attn_mask is None or not trains_mask:
        return dq, dk, dv, query.new_empty(0)
    return dq, dk, dv, attn_mask.new_empty(attn_mask.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.is_causal, ctx.scale, ctx.heads_later, ctx.window, key, ctx.dropout_p = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output, key)


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    *saved, key = ctx.saved_tensors
    trained = ctx.needs_input_grad[3]
    options = ctx.is_causal, ctx.scale, ctx.heads_later, trained, ctx.window, key, ctx.dropout_p
    dq, dk, dv, dmask = fused_attention_dx(dy, *saved, *options)
    return dq, dk, dv, dmask if trained else None, *[None] * 6


_ARGUMENTS = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask"
_OPTIONS = "bool is_causal, float? scale, bool heads_later"
_DROPOUT = "int[]? window=None, Tensor? dropout_key=None, float dropout_p=0.0"
fused_attention = define(
    f"fused_attention({_ARGUMENTS}, {_OPTIONS}, {_DROPOUT}) -> (Tensor, Tensor)",
    _attention,
    _fake_forward,
    (_backward, _save),
)
fused_attention_dx = define(
    f"fused_attention_dx(Tensor dy, {_ARGUMENTS}, Tensor y, Tensor logsumexp, {_OPTIONS},"
    f" bool trains_mask, {_DROPOUT}) -> (Tensor, Tensor, Tensor, Tensor)",
    _attention_dx,
    _fake_backward,
)


@aten("meta.fused_attention", op.fused_attention)
def _convert(
    query: Any, key: Any, value: Any, mask: Any, dropout_key: Any = None, *, is_causal: bool,
    scale: Any, heads_later: bool, **how: Any,
) -> Any:  # fmt: skip
    given = query, key, value, mask, is_causal, scale
    y, logsumexp = op.fused_attention(*given, dropout_key=dropout_key, **how)
    return y, cast(logsumexp, "float64" if query.dtype == "float64" else "float32")


@aten("meta.fused_attention_dx", op.fused_attention_dx, op.fused_attention_dmask, op.zeros)
def _convert_dx(
    dy: Any, query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any,
    dropout_key: Any = None, *, is_causal: bool, scale: Any, heads_later: bool, trains_mask: bool,
    call: Any, **how: Any,
) -> Any:  # fmt: skip
    given = (query, key, value, mask, y, logsumexp, dy, is_causal, scale)
    how["dropout_key"] = dropout_key
    dq, dk, dv = op.fused_attention_dx(*given, **how)
    if trains_mask:
        return dq, dk, dv, op.fused_attention_dmask(*given, **how)
    return dq, dk, dv, op.zeros((0,), query.dtype, call.device)
