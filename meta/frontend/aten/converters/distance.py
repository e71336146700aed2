"""Distances of vectors, and angles between them."""

import math

import numpy as np

from meta import op
from meta.frontend.aten.arguments import cast, constant, promote
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.op.products import vector_norm


@aten("cdist", "_cdist_forward", op.cdist, ignore=("compute_mode",))
def cdist(x1, x2, *, p):
    return op.cdist(x1, x2, p)


@aten("_euclidean_dist", op.cdist)
def euclidean_dist(x1, x2):
    return op.cdist(x1, x2, 2.0)


def _slope(difference, distance, p):
    """Return the gradient of a distance by each coordinate; that of 0 is 0, and of equal maxima
    each gets all, as torch has it.
    """
    sign, size = op.sign(difference), op.abs(difference)
    if p == 0:
        return op.zeros_like(difference)
    if p == 1:
        return sign
    if p == math.inf:
        return op.where(op.equal(size, distance), sign, 0.0)
    flat = op.equal(distance, 0)
    divisor = op.where(flat, 1.0, distance)
    if p == 2:
        return op.where(flat, 0.0, op.divide(difference, divisor))
    still = op.equal(size, 0)
    powers = op.divide(op.pow(op.where(still, 1.0, size), p - 1.0), op.pow(divisor, p - 1.0))
    return op.where(op.logical_or(flat, still), 0.0, op.multiply(sign, powers))


def _gradient(dy, x1, x2, distance, p):
    """Return the gradient by x1 of the distances of its rows from those of x2."""
    difference = op.subtract(op.expand_dims(x1, -2), op.expand_dims(x2, -3))
    slope = _slope(difference, op.expand_dims(distance, -1), p)
    return cast(op.sum(op.multiply(slope, op.expand_dims(dy, -1)), -2), x1.dtype)


@aten("_cdist_backward", op.subtract, op.sum)
def cdist_backward(dy, x1, x2, distance, *, p):
    if 0 in dy.shape or 0 in x1.shape:
        return op.zeros_like(x1)
    return _gradient(dy, x1, x2, distance, p)


def _count(x):
    if not isinstance(x.shape[0], int):
        raise Unconvertible("the number of rows is not known")
    return x.shape[0]


@aten("pdist", "_pdist_forward", op.take, op.subtract)
def pdist(x, *, p, call):
    """The distance of each row from each later one."""
    first, second = (constant(i, "int64", call) for i in np.triu_indices(_count(x), 1))
    return vector_norm(op.subtract(op.take(x, first, 0), op.take(x, second, 0)), p, -1)


@aten("_pdist_backward", op.take, op.subtract, op.sum)
def pdist_backward(dy, x, distance, *, p, call):
    """Of all pairs: those behind the diagonal of a square are before it as well."""
    count = _count(x)
    if count < 2:
        return op.zeros_like(x)
    places = np.zeros((count, count), np.int64)
    places[np.triu_indices(count, 1)] = np.arange(count * (count - 1) // 2)
    places = constant(places + places.T, "int64", call)
    other = constant(~np.eye(count, dtype=bool), "bool", call)
    dy, distance = (op.where(other, op.take(t, places, 0), 0.0) for t in (dy, distance))
    return _gradient(dy, x, x, distance, p)


@aten("pairwise_distance", op.pairwise_distance)
def pairwise_distance(x1, x2, *, p, eps, keepdim):
    return op.pairwise_distance(*promote(x1, x2), p, eps, keepdim)


@aten("cosine_similarity", op.cosine_similarity)
def cosine_similarity(x1, x2, *, dim, eps):
    return op.cosine_similarity(*promote(x1, x2), dim, eps)
