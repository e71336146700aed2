"""Distances between vectors and angles of them, composed of operators."""

from __future__ import annotations

import math
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, TypeInferError
from meta.op.core.function import as_operand, function
from meta.op.loss_reduction import type_text


def nonzero_indicator(size: Any) -> Any:
    """Return 1 for each number that is not 0, and 0 for each that is; with a gradient, of 0."""
    return op.trunc(op.where(op.equal(size, 0), size, 1.0))


def vector_norm(x: Any, p: float, axis: int, keepdims: bool = False) -> Any:
    """Return the p-norm of vectors along an axis; the gradient of one that is 0 is taken as 0."""
    size = op.abs(x)
    if p == math.inf:
        return op.max(size, axis, keepdims)
    if p == 1:
        return op.sum(size, axis, keepdims)
    if p == 0:
        return op.sum(nonzero_indicator(size), axis, keepdims)
    total = op.sum(size * size if p == 2 else op.pow(size, float(p)), axis, keepdims)
    positive = op.where(total == 0, 1.0, total)
    root = op.sqrt(positive) if p == 2 else op.pow(positive, 1.0 / p)
    return op.where(total == 0, 0.0, root)


def _vectors(name: str, p: float, *arrays: Any) -> list[Any]:
    given = [as_operand(x) for x in arrays]
    for x in given:
        if not is_float(x.dtype):
            what = "vectors must be floating point"
            expected = "float16 to float64"
            raise TypeInferError(what, op=name, expected=expected, found=type_text(x))
    if not isinstance(p, int | float) or not p >= 0:
        raise ArgumentError("p is no norm", op=name, expected="a number >= 0, or inf", found=p)
    return given


@function
def cdist(x1: Any, x2: Any, p: float = 2.0) -> Any:
    """Return the p-norm distance of each row of ``x1`` from each row of ``x2``.

    x1: (..., m, d). x2: (..., n, d); leading axes are broadcast. Result: (..., m, n). Floating
    point. All differences are held at once, unless a compiler fuses them. The gradient of a
    distance that is 0 is taken as 0. As torch's. Raises TypeInferError if they do not fit.
    """
    x1, x2 = _vectors("cdist", p, x1, x2)
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        found = f"x1={type_text(x1)}, x2={type_text(x2)}"
        expected = "two arrays of rows of one extent"
        raise TypeInferError("x1 and x2 differ", op="cdist", expected=expected, found=found)
    difference = op.expand_dims(x1, -2) - op.expand_dims(x2, -3)
    return vector_norm(difference, p, -1)


@function
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Any:
    """Return the p-norm distance of vectors along the last axis; the others are broadcast.

    eps: is added to each difference, as by torch.
    """
    x1, x2 = _vectors("pairwise_distance", p, x1, x2)
    return vector_norm(x1 - x2 + eps, p, -1, keepdims)


@function
def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """Return the cosine of the angle of vectors along ``axis``; the others are broadcast.

    eps: the least length of a vector. As torch's.
    """
    x1, x2 = _vectors("cosine_similarity", 2, x1, x2)
    x1, x2 = op.broadcast_arrays(x1, x2)
    lengths = [op.maximum(vector_norm(x, 2, axis, True), eps) for x in (x1, x2)]
    return op.sum((x1 / lengths[0]) * (x2 / lengths[1]), axis)


@function
def normalize(x: Any, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Any:
    """Return vectors along ``axis`` divided by their p-norm, or by ``eps`` if that is larger.

    As torch's. `l2_normalize` bounds the square of the length instead.
    """
    (x,) = _vectors("normalize", p, x)
    return x / op.maximum(vector_norm(x, p, axis, True), eps)
