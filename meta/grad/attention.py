"""Gradients of attention and rotary embeddings."""

from dataclasses import dataclass
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient, in_dtype
from meta.op.attention import HEADS_FIRST, mask_repeats, score_scale
from meta.op.core.function import device_of
from meta.op.norm import statistics_dtype


@gradient(op.fused_attention)
def fused_attention(
    query, key, value, mask, y, dy, causal, scale, layout, window, slopes, dropout_key, dropout_p
):
    """The probabilities are computed anew: they are larger than all else together.

    The gradients of a mask and of slopes are operators of their own, so that a traced program drops
    them if unused.
    """
    (y, logsumexp), (dy, _) = y, dy
    options = causal, scale, layout, window, slopes, dropout_key, dropout_p
    arguments = (query, key, value, mask, y, logsumexp, dy, *options)
    gradients = op.fused_attention_dx(*arguments)
    added = mask is not None and is_float(mask.dtype)
    by_mask = op.fused_attention_dmask(*arguments) if added else None
    by_slopes = None if slopes is None else op.fused_attention_dslopes(*arguments)
    return *gradients, by_mask, by_slopes, None


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

    def probabilities(self, mask, logsumexp, scale, options):
        """exp(scores - logsumexp), 0 where a query may not look; mask: causal's and the window's
        are added to it.
        """
        shape = (*logsumexp.shape, self.key.shape[1])
        scores = op.reshape(op.batch_matmul_nt(self.query, self.key) * scale, shape)
        if mask is not None and is_float(mask.dtype):
            scores = scores + in_dtype(mask, self.wide)
        elif mask is not None:
            scores = op.where(mask, scores, float("-inf"))
        if options.slopes is not None:
            slopes = _slopes_with_axes(in_dtype(options.slopes, self.wide))
            scores = scores - slopes * _distances(shape[2], shape[3], scores)
        for seen in options.visible(scores):
            scores = op.where(seen, scores, float("-inf"))
        p = op.exp(scores - op.expand_dims(logsumexp, -1))
        return op.reshape(p, (self.query.shape[0], *shape[2:]))


@dataclass
class _Options:
    """What is done to the scores and the weights besides a mask."""

    causal: bool
    window: tuple[int, int] | None
    slopes: Any
    dropout_key: Any
    dropout_p: float

    def visible(self, scores):
        """Return masks of where queries may look."""
        left, right = self.window or (-1, -1)
        if self.causal:
            right = 0
        found = []
        if right >= 0:
            found.append(op.tril(op.ones_like(scores), right) > 0.0)
        if left >= 0:
            found.append(op.triu(op.ones_like(scores), -left) > 0.0)
        return found

    def kept(self, shape, like):
        """Return what weights [b, h, l, s] are multiplied by, or None."""
        if self.dropout_key is None or self.dropout_p == 0:
            return None
        mask = op.dropout_mask(self.dropout_key, shape, self.dropout_p)
        factor = op.multiply(in_dtype(mask, like.dtype), 1 / (1 - self.dropout_p))
        return op.reshape(factor, like.shape)


def _slopes_with_axes(slopes):
    """Return slopes [h] or [b, h] with axes for queries and keys."""
    return op.reshape(slopes, (*slopes.shape, 1, 1))


def _distances(steps, keys, like):
    """Return how far each key is from each query, where ``like`` is and in its dtype."""
    dtype, where = like.dtype, device_of(like)
    rows = op.reshape(op.arange(0, steps, 1, dtype, where), (steps, 1))
    return op.abs(op.arange(0, keys, 1, dtype, where) - rows)


def _swap_layout(x, layout):
    """Return x with its heads first, or back in ``layout``."""
    return x if layout == HEADS_FIRST else op.permute_dims(x, (0, 2, 1, 3))


def _double_backward(given: tuple[Any, ...], u, u_bias, by_slopes=False):
    """`_double_backward_of_heads` in any layout; ``by_slopes``: u_bias is of slopes, not of a
    mask.
    """
    (query, key, value, mask, y, logsumexp, dy), options = given[:7], given[7:]
    causal, scale, layout, *rest = options
    query, key, value = (_swap_layout(t, layout) for t in (query, key, value))
    y, dy = _swap_layout(y, layout), _swap_layout(dy, layout)
    u = None if u is None else tuple(_swap_layout(t, layout) for t in u)
    how = _Options(causal, *rest)
    if by_slopes:
        u_bias = _slopes_with_axes(in_dtype(u_bias, statistics_dtype(query.dtype)))
        u_bias = -u_bias * _distances(query.shape[2], key.shape[2], u_bias)
    elif u_bias is not None:
        u_bias = _repeat_batches(u_bias, mask_repeats(mask, query.shape[0]))
    found = _double_backward_of_heads(
        query, key, value, mask, y, logsumexp, dy, scale, how, u, u_bias
    )
    by_tensor = [
        _swap_layout(g, layout) if i in (0, 1, 2, 4, 6) else g for i, g in enumerate(found)
    ]
    return *by_tensor, None


def _repeat_batches(mask, times):
    """Return a mask whose batches follow one another so often."""
    if mask is None or times == 1:
        return mask
    spread = op.broadcast_to(op.expand_dims(mask, 0), (times, *mask.shape))
    return op.reshape(spread, (times * mask.shape[0], *mask.shape[1:]))


def _double_backward_of_heads(query, key, value, mask, y, logsumexp, dy, scale, how, u, u_bias):
    """Return the gradients of ``sum(u * (dquery, dkey, dvalue)) + sum(u_bias * ds)``.

    By everything that determines them, y and logsumexp taken as functions of the others, with p
    the probabilities, z what dropout multiplies them by, P = z (dy value'), S = ds =
    p (P - rowsum(p P)), and c = scale. u_bias, or else u, is None. By S it is
    U = c (u_query key' + query u_key') + u_bias.
    """
    scale, given = score_scale(scale, query.shape[3]), mask
    times = mask_repeats(mask, query.shape[0])
    mask = _repeat_batches(mask, times)
    h = _Heads(query, key, value, dy)
    p = h.probabilities(mask, logsumexp, scale, how)
    full = (*query.shape[:3], key.shape[2])
    z = how.kept(full, p)

    def kept(x):
        return x if z is None else x * z

    slope = kept(op.batch_matmul_nt(h.dy, h.value))
    if u is None:
        spread = op.broadcast_to(u_bias, full)
        by_scores, zeros = h.flat(spread), op.zeros_like
        by_query, by_key, by_p, by_dy = map(zeros, (h.query, h.key, p, h.dy))
    else:
        u_query, u_key, u_value = h.flat(u[0]), h.flat(u[1], h.share), h.flat(u[2], h.share)
        dscores = op.softmax_dx(p, slope, -1)
        by_scores = op.batch_matmul_nt(u_query, h.key) + op.batch_matmul_nt(h.query, u_key)
        by_scores = by_scores * scale
        by_query, by_key = op.batch_matmul(dscores, u_key), op.batch_matmul_tn(dscores, u_query)
        by_p = kept(op.batch_matmul_nt(h.dy, u_value))
        by_dy = op.batch_matmul(kept(p), u_value)
    # From S to p and P, and from p on to the scores.
    by_slope = kept(op.softmax_dx(p, by_scores, -1))
    by_p = by_p + by_scores * (slope - op.sum(p * slope, -1, True))
    bend = op.softmax_dx(p, by_p - slope * op.sum(p * by_scores, -1, True), -1)
    by_query = (by_query + op.batch_matmul(bend, h.key)) * scale
    by_key = (by_key + op.batch_matmul_tn(bend, h.query)) * scale
    by_value = op.batch_matmul_tn(by_slope, h.dy)
    by_dy = by_dy + op.batch_matmul(by_slope, h.value)
    bend = op.reshape(bend, full)
    by_mask = by_slopes = None
    if mask is not None and is_float(mask.dtype):
        by_mask = bend
        if times != 1:
            by_mask = op.sum(op.reshape(by_mask, (times, -1, *by_mask.shape[1:])), 0)
        by_mask = collapse(by_mask, given)
    if how.slopes is not None:
        by_slopes = -op.sum(bend * _distances(full[2], full[3], bend), (2, 3))
        by_slopes = collapse(by_slopes, how.slopes)
    return (
        h.like(by_query, query),
        h.like(by_key, key),
        h.like(by_value, value),
        by_mask,
        op.zeros_like(y),
        op.zeros_like(logsumexp),
        h.like(by_dy, dy),
        by_slopes,
    )


@gradient(op.fused_attention_dx)
def fused_attention_dx(
    query, key, value, mask, y, logsumexp, dy, dy_, causal, scale, layout, window, slopes,
    dropout_key, dropout_p,
):  # fmt: skip
    options = causal, scale, layout, window, slopes, dropout_key, dropout_p
    return _double_backward((query, key, value, mask, y, logsumexp, dy, *options), dy_, None)


@gradient(op.fused_attention_dmask)
def fused_attention_dmask(
    query, key, value, mask, y, logsumexp, dy, dy_, causal, scale, layout, window, slopes,
    dropout_key, dropout_p,
):  # fmt: skip
    options = causal, scale, layout, window, slopes, dropout_key, dropout_p
    return _double_backward((query, key, value, mask, y, logsumexp, dy, *options), None, dy_)


@gradient(op.fused_attention_dslopes)
def fused_attention_dslopes(
    query, key, value, mask, y, logsumexp, dy, dy_, causal, scale, layout, window, slopes,
    dropout_key, dropout_p,
):  # fmt: skip
    """It is that of the scores' bias, which is -slopes * distance."""
    options = causal, scale, layout, window, slopes, dropout_key, dropout_p
    given = (query, key, value, mask, y, logsumexp, dy, *options)
    return _double_backward(given, None, dy_, by_slopes=True)


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
