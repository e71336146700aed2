"""Gradients of attention and rotary embeddings."""

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient, in_dtype
from meta.op.attention import HEADS_FIRST, mask_repeats, score_scale
from meta.op.norm import statistics_dtype


@gradient(op.fused_attention)
def fused_attention(query, key, value, mask, y, dy, causal, scale, layout):
    """The probabilities are computed anew: they are larger than all else together.

    The gradient of a mask is an operator of its own, so that a traced program drops it if unused.
    """
    (y, logsumexp), (dy, _) = y, dy
    arguments = (query, key, value, mask, y, logsumexp, dy, causal, scale, layout)
    gradients = op.fused_attention_dx(*arguments)
    if mask is None or not is_float(mask.dtype):
        return *gradients, None
    return *gradients, op.fused_attention_dmask(*arguments)


class _Heads:
    """Attention as products of matrices [b * h, ..], each head of query with a key of its own."""

    def __init__(self, query, key, value, dy):
        self.wide = statistics_dtype(query.dtype)
        self.heads = query.shape[1]
        self.share = self.heads // max(key.shape[1], 1)
        self.query, self.dy = self.flat(query), self.flat(dy)
        self.key, self.value = self.flat(key, self.share), self.flat(value, self.share)

    def flat(self, x, share=1):
        """[b, g, n, m] as [b * h, n, m], in the dtype that is computed in."""
        x = in_dtype(x, self.wide)
        x = x if share == 1 else op.repeat(x, share, 1)
        return op.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))

    def like(self, flat, x):
        """[b * h, n, m] as the [b, g, n, m] of x, summed over the heads that share it."""
        if x.shape[1] != self.heads:
            flat = op.reshape(flat, (*x.shape[:2], self.share, *x.shape[2:]))
            flat = op.sum(flat, 2)
        return op.astype(op.reshape(flat, x.shape), x.dtype)

    def probabilities(self, mask, logsumexp, causal, scale):
        """exp(scores - logsumexp), 0 where a query may not look."""
        shape = (*logsumexp.shape, self.key.shape[1])
        scores = op.reshape(op.batch_matmul_nt(self.query, self.key) * scale, shape)
        if mask is not None and is_float(mask.dtype):
            scores = scores + in_dtype(mask, self.wide)
        elif mask is not None:
            scores = op.where(mask, scores, float("-inf"))
        if causal:
            scores = op.where(op.tril(op.ones_like(scores)) > 0.0, scores, float("-inf"))
        p = op.exp(scores - op.expand_dims(logsumexp, -1))
        return op.reshape(p, (self.query.shape[0], *shape[2:]))


def _swapped(x, layout):
    """Return x with its heads first, or back in ``layout``."""
    return x if layout == HEADS_FIRST else op.permute_dims(x, (0, 2, 1, 3))


def _second(given: tuple[Any, ...], u, u_mask):
    """`_second_of_heads` in any layout."""
    query, key, value, mask, y, logsumexp, dy, causal, scale, layout = given
    query, key, value = (_swapped(t, layout) for t in (query, key, value))
    y, dy = _swapped(y, layout), _swapped(dy, layout)
    u = None if u is None else tuple(_swapped(t, layout) for t in u)
    found = _second_of_heads(query, key, value, mask, y, logsumexp, dy, causal, scale, u, u_mask)
    return tuple(_swapped(g, layout) if i in (0, 1, 2, 4, 6) else g for i, g in enumerate(found))


def _repeated(mask, times):
    """Return a mask whose batches follow one another so often."""
    if mask is None or times == 1:
        return mask
    spread = op.broadcast_to(op.expand_dims(mask, 0), (times, *mask.shape))
    return op.reshape(spread, (times * mask.shape[0], *mask.shape[1:]))


def _second_of_heads(query, key, value, mask, y, logsumexp, dy, causal, scale, u, u_mask):
    """Return the gradients of ``sum(u * (dquery, dkey, dvalue)) + sum(u_mask * dmask)``.

    By everything that determines them, y and logsumexp taken as functions of the others, with p
    the probabilities, P = dy value', S = dscores = p (P - rowsum(p P)), and c = scale. u_mask, or
    else u, is None. By S it is U = c (u_query key' + query u_key') + u_mask.
    """
    scale, given = score_scale(scale, query.shape[3]), mask
    times = mask_repeats(mask, query.shape[0])
    mask, u_mask = _repeated(mask, times), _repeated(u_mask, times)
    h = _Heads(query, key, value, dy)
    p = h.probabilities(mask, logsumexp, causal, scale)
    slope = op.batch_matmul_nt(h.dy, h.value)
    if u is None:
        spread = op.broadcast_to(u_mask, (*query.shape[:3], key.shape[2]))
        by_scores, zeros = h.flat(spread), op.zeros_like
        by_query, by_key, by_p, by_dy = map(zeros, (h.query, h.key, p, h.dy))
    else:
        u_query, u_key, u_value = h.flat(u[0]), h.flat(u[1], h.share), h.flat(u[2], h.share)
        dscores = op.softmax_dx(p, slope, -1)
        by_scores = op.batch_matmul_nt(u_query, h.key) + op.batch_matmul_nt(h.query, u_key)
        by_scores = by_scores * scale
        by_query, by_key = op.batch_matmul(dscores, u_key), op.batch_matmul_tn(dscores, u_query)
        by_p, by_dy = op.batch_matmul_nt(h.dy, u_value), op.batch_matmul(p, u_value)
    # From S to p and P, and from p on to the scores.
    by_slope = op.softmax_dx(p, by_scores, -1)
    by_p = by_p + by_scores * (slope - op.sum(p * slope, -1, True))
    bend = op.softmax_dx(p, by_p - slope * op.sum(p * by_scores, -1, True), -1)
    by_query = (by_query + op.batch_matmul(bend, h.key)) * scale
    by_key = (by_key + op.batch_matmul_tn(bend, h.query)) * scale
    by_value = op.batch_matmul_tn(by_slope, h.dy)
    by_dy = by_dy + op.batch_matmul(by_slope, h.value)
    by_mask = None
    if mask is not None and is_float(mask.dtype):
        by_mask = op.reshape(bend, (*query.shape[:3], key.shape[2]))
        if times != 1:
            by_mask = op.sum(op.reshape(by_mask, (times, -1, *by_mask.shape[1:])), 0)
        by_mask = collapse(by_mask, given)
    return (
        h.like(by_query, query),
        h.like(by_key, key),
        h.like(by_value, value),
        by_mask,
        op.zeros_like(y),
        op.zeros_like(logsumexp),
        h.like(by_dy, dy),
    )


@gradient(op.fused_attention_dx)
def fused_attention_dx(query, key, value, mask, y, logsumexp, dy, dy_, causal, scale, layout):
    given = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    return _second(given, dy_, None)


@gradient(op.fused_attention_dmask)
def fused_attention_dmask(query, key, value, mask, y, logsumexp, dy, dy_, causal, scale, layout):
    given = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    return _second(given, None, dy_)


@gradient(op.rotary_embedding)
def rotary_embedding(x, cos, sin, dy, interleaved):
    """The tables' gradients are an operator of their own: a traced program drops it if unused."""
    dx = op.rotary_embedding(dy, cos, -sin, interleaved)
    return dx, *op.rotary_embedding_dtable(x, dy, cos, interleaved)


@gradient(op.rotary_embedding_dtable)
def rotary_embedding_dtable(x, dy, cos, dy_, interleaved):
    """Linear in x and in dy: each is the other, turned by the gradients of the tables."""
    dcos, dsin = dy_
    return (
        op.rotary_embedding(dy, dcos, -dsin, interleaved),
        op.rotary_embedding(x, dcos, dsin, interleaved),
        op.zeros_like(cos),
    )
