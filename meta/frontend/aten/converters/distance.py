"""Distances of vectors, and angles between them."""

import numpy as np

from meta import op
from meta.frontend.aten.promotion import promoted
from meta.frontend.aten.pullback import pullback
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.op.distances import length
from meta.runtime.ndarray import array


@aten("cdist", "_cdist_forward", op.cdist, ignore=("compute_mode",))
def cdist(x1, x2, *, p):
    return op.cdist(x1, x2, p)


@aten("_euclidean_dist", op.cdist)
def euclidean_dist(x1, x2):
    return op.cdist(x1, x2, 2.0)


@aten("_cdist_backward", op.cdist)
def cdist_backward(dy, x1, x2, _distances, *, p):
    if p == 0:
        return op.zeros_like(x1)
    return pullback(lambda x: op.cdist(x, x2, p), (x1,), dy)[0]


def _pairs(x, p, call):
    """Return the distance of each row from each later one."""
    if not isinstance(x.shape[0], int):
        raise Unconvertible("the number of rows is not known")
    first, second = (
        array(i.astype(np.int64), device=call.device) for i in np.triu_indices(x.shape[0], 1)
    )
    return length(op.subtract(op.take(x, first, 0), op.take(x, second, 0)), p, -1)


@aten("pdist", "_pdist_forward", op.take, op.subtract)
def pdist(x, *, p, call):
    return _pairs(x, p, call)


@aten("_pdist_backward")
def pdist_backward(dy, x, _distances, *, p, call):
    if p == 0:
        return op.zeros_like(x)
    return pullback(lambda x: _pairs(x, p, call), (x,), dy)[0]


@aten("pairwise_distance", op.pairwise_distance)
def pairwise_distance(x1, x2, *, p, eps, keepdim):
    return op.pairwise_distance(*promoted(x1, x2), p, eps, keepdim)


@aten("cosine_similarity", op.cosine_similarity)
def cosine_similarity(x1, x2, *, dim, eps):
    return op.cosine_similarity(*promoted(x1, x2), dim, eps)
