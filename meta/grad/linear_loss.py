"""Gradients of the cross entropy of a fully connected layer."""

from meta import op
from meta.grad.core import gradient


@gradient(op.linear_cross_entropies)
def linear_cross_entropies(x, linear_weight, target, linear_bias, y, dy):
    """Both results are differentiated; the second is kept for the scores, computed once more."""
    given = x, linear_weight, target, y[1], linear_bias
    found = op.linear_cross_entropies_dxwb(*dy, *given)
    dx, dw, *db = found
    return dx, dw, None, db[0] if db else None


@gradient(op.linear_cross_entropies_dxwb)
def linear_cross_entropies_dxwb(
    dloss, dlogsumexp, x, linear_weight, target, logsumexp, linear_bias, dy
):
    """With all scores in memory. ``u``, of dy, is the gradient of those of the scores, which are
    g = p * (dloss + dlogsumexp) - hot * dloss; what passes through logsumexp is that of p.
    """
    wide = logsumexp.dtype
    dtype, (dx, dw, *db) = x.dtype, (_as(t, wide) for t in dy)
    x, w = _as(x, wide), _as(linear_weight, wide)
    scores, u = op.dense(x, w), op.dense(dx, w) + op.dense(x, dw)
    if linear_bias is not None:
        scores, u = scores + _as(linear_bias, wide), u + db[0]
    p = op.softmax(scores, 1)
    hot = op.one_hot(target, scores.shape[1], 1.0, 0.0, dtype=wide, mode="ignore")
    counted = op.sum(hot, 1)
    share = op.expand_dims(dloss * counted + dlogsumexp, 1)
    g = p * share - hot * op.expand_dims(dloss, 1)
    bent = op.softmax_dx(p, u * share, 1)
    by_dlogsumexp = op.sum(p * u, 1)
    by_dloss = by_dlogsumexp * counted - op.sum(hot * u, 1)
    by_x = op.matmul(bent, w) + op.matmul(g, dw)
    by_w = op.matmul_tn(bent, x) + op.matmul_tn(g, dx)
    by_bias = None if linear_bias is None else _as(op.sum(bent, 0), dtype)
    by_scores = _as(by_x, dtype), _as(by_w, dtype), None, op.zeros_like(logsumexp), by_bias
    return by_dloss, by_dlogsumexp, *by_scores


def _as(x, dtype):
    return x if x.dtype == dtype else op.astype(x, dtype)
