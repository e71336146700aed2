"""Attention as operators of PyTorch's, with others for their gradients: of shared heads of key and
value, Ainslie et al., arXiv:2305.13245, and of short sequences, whose masks are trained, as windows
of images have them, Liu et al., arXiv:2103.14030.

PyTorch's own forms keep the probabilities for the gradient, or copies of the shared heads; these
keep query, key and value alone, and the logarithm of a sum for each query.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.definitions import define
from meta.op.attention import score_scale


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the weights of values, and the logsumexp of scores, in at least float32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ _repeated(query, key).mT) * scale
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
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


def _like(query: Tensor, value: Tensor) -> Tensor:
    """Return memory for a result, which lies as query does."""
    if query.shape[3] == value.shape[3]:
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:3], value.shape[3]))


def _grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention of query [b, h, s, d] to key and value [b, h / n, t, d], and the logsumexp of its
    scores, [b, h, s].
    """
    weights, logsumexp = _weights(query, key, attn_mask, is_causal, _scale(query, scale))
    result = _like(query, value).copy_(weights @ _repeated(query, value))
    return result, logsumexp


def _scale(query: Tensor, scale: float | None) -> float:
    return score_scale(scale, query.shape[3])


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, is_causal: bool, scale: Any
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return _like(query, value), query.new_empty(query.shape[:3], dtype=dtype)


def _grouped_attention_dx(
    dy: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    y: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, key and value."""
    factor = _scale(query, scale)
    weights, _ = _weights(query, key, attn_mask, is_causal, factor)
    slope = dy.to(weights.dtype)
    by_weights = slope @ _repeated(query, value).mT
    by_scores = weights * (by_weights - (slope * y).sum(-1, keepdim=True)) * factor
    dq = by_scores @ _repeated(query, key)
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    found = by_scores.mT @ query.to(weights.dtype), weights.mT @ slope
    dk, dv = (t.reshape(t.shape[0], *groups, *t.shape[2:]).sum(2) for t in found)
    results = zip((query, key, value), (dq, dk, dv), strict=True)
    dq, dk, dv = (torch.empty_like(t).copy_(g) for t, g in results)
    return dq, dk, dv


def _fake_backward(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, ctx.is_causal, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, mask, *output)


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    given = (dy, *ctx.saved_tensors, ctx.is_causal, ctx.scale)
    return *grouped_attention_dx(*given), None, None, None


grouped_attention = define(
    "grouped_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal,"
    " float? scale) -> (Tensor, Tensor)",
    _grouped_attention,
    _fake_forward,
    (_backward, _save),
)
grouped_attention_dx = define(
    "grouped_attention_dx(Tensor dy, Tensor query, Tensor key, Tensor value, Tensor? attn_mask,"
    " Tensor y, Tensor logsumexp, bool is_causal, float? scale) -> (Tensor, Tensor, Tensor)",
    _grouped_attention_dx,
    _fake_backward,
)


@aten("meta.grouped_attention", op.fused_attention)
def _convert(
    query: Any, key: Any, value: Any, mask: Any, *, is_causal: bool, scale: Any, call: Any
) -> Any:
    y, logsumexp = op.fused_attention(query, key, value, mask, is_causal, scale)
    return y, cast(logsumexp, "float64" if query.dtype == "float64" else "float32")


@aten("meta.grouped_attention_dx", op.fused_attention_dx)
def _convert_dx(
    dy: Any, query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any,
    *, is_causal: bool, scale: Any,
) -> Any:  # fmt: skip
    return op.fused_attention_dx(query, key, value, mask, y, logsumexp, dy, is_causal, scale)


def _tiled(mask: Tensor, batch: int) -> Tensor:
    return mask if mask.shape[0] in (1, batch) else mask.repeat(batch // mask.shape[0], 1, 1, 1)


def _masked_scores(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> Tensor:
    return query.float() @ key.float().mT * scale + _tiled(mask.float(), query.shape[0])


def _heads_later(like: Tensor) -> Tensor:
    """Return an array of a shape [b, h, s, d], in whose memory the heads are behind the steps."""
    batch, heads, steps, width = like.shape
    return like.new_empty((batch, steps, heads, width)).transpose(1, 2)


def _short_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The result and the logarithm of the sum of exponentials of the scores; see
    `meta.fused_attention`.
    """
    scores = _masked_scores(query, key, mask, scale)
    y = _heads_later(query).copy_(scores.softmax(-1) @ value.float())
    return y, scores.logsumexp(-1)


def _fake_short_forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return _heads_later(query), query.new_empty(query.shape[:3], dtype=torch.float32)


def _short_attention_dx(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, y: Tensor,
    logsumexp: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients by query, key, value and mask."""
    p = (_masked_scores(query, key, mask, scale) - logsumexp.unsqueeze(-1)).exp()
    slope = dy.float() @ value.float().mT
    ds = p * (slope - (p * slope).sum(-1, keepdim=True))
    gradients = ds @ key.float() * scale, ds.mT @ query.float() * scale, p.mT @ dy.float()
    by_mask = ds.view(-1, mask.shape[0], *ds.shape[1:]).sum(0).sum_to_size(mask.shape)
    operands = query, key, value
    dx = [_heads_later(t).copy_(g) for t, g in zip(operands, gradients, strict=True)]
    return dx[0], dx[1], dx[2], by_mask.to(mask.dtype)


def _fake_short_backward(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, y: Tensor,
    logsumexp: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dx = [_heads_later(t) for t in (query, key, value)]
    return dx[0], dx[1], dx[2], mask.new_empty(mask.shape)


def _save_short(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _short_backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    return *short_attention_dx(dy, *ctx.saved_tensors, ctx.scale), None


short_attention = define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor mask, float scale)"
    " -> (Tensor, Tensor)",
    _short_attention,
    _fake_short_forward,
    (_short_backward, _save_short),
)
short_attention_dx = define(
    "attention_dx(Tensor dy, Tensor query, Tensor key, Tensor value, Tensor mask, Tensor y,"
    " Tensor logsumexp, float scale) -> (Tensor, Tensor, Tensor, Tensor)",
    _short_attention_dx,
    _fake_short_backward,
)


@aten("meta.attention", op.fused_attention)
def _convert_short(query: Any, key: Any, value: Any, mask: Any, *, scale: float) -> Any:
    return op.fused_attention(query, key, value, mask, False, scale)


@aten("meta.attention_dx", op.fused_attention_dx, op.fused_attention_dmask)
def _convert_short_dx(
    dy: Any, query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any, *, scale: float
) -> Any:
    given = (query, key, value, mask, y, logsumexp, dy, False, scale)
    return *op.fused_attention_dx(*given), op.fused_attention_dmask(*given)
