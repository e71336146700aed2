"""Products of vectors, matrices and stacks of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import at_least_1d, axes, axis_of, number_for, real
from tools.torch_samples.families.reductions import norm


def plus(input: Any, product: Any, beta: float, alpha: float) -> Any:
    """Return beta * input + alpha * product; nothing of an input that beta makes 0."""
    alpha, beta = (number_for(n, input) for n in (alpha, beta))
    if input.dtype == "bool":
        scaled = meta.logical_and(product, meta.full((), alpha, "bool"))
        return meta.logical_or(meta.logical_and(input, meta.full((), beta, "bool")), scaled)
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return (input if beta == 1 else input * beta) + scaled


def outer(a: Any, b: Any) -> Any:
    """The product of a column and a row."""
    if a.dtype == "bool":
        return meta.logical_and(meta.expand_dims(a, 1), b)
    return meta.expand_dims(a, 1) * b


def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    """The sum of products along an axis."""
    return meta.sum(x * y, dim)


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """Sum products over axes of both."""
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = ([axis_of(t, d) for d in side] for t, side in zip((a, b), dims, strict=True))
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j] == 1:
            a = meta.sum(a, i, True)
        elif b.shape[j] != a.shape[i] == 1:
            b = meta.sum(b, j, True)
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [i for i in range(b.ndim) if i not in right]
    m, n = ([t.shape[i] for i in kept] for t, kept in ((a, rows), (b, columns)))
    k = math.prod(a.shape[i] for i in left)
    matrices = (
        meta.reshape(meta.permute_dims(a, (*rows, *left)), (math.prod(m), k)),
        meta.reshape(meta.permute_dims(b, (*right, *columns)), (k, math.prod(n))),
    )
    return meta.reshape(meta.matmul(*matrices), (*m, *n))


def inner(input: Any, other: Any) -> Any:
    """The sum of products along the last axes."""
    if input.ndim == 0 or other.ndim == 0:
        return input * other
    return tensordot(input, other, ([-1], [-1]))


def kron(input: Any, other: Any) -> Any:
    """The Kronecker product."""
    ndim = max(input.ndim, other.ndim)
    a, b = ((1,) * (ndim - t.ndim) + t.shape for t in (input, other))
    wide = meta.reshape(input, tuple(d for e in a for d in (e, 1)))
    fine = meta.reshape(other, tuple(d for e in b for d in (1, e)))
    return meta.reshape(wide * fine, tuple(m * n for m, n in zip(a, b, strict=True)))


def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """The vector product along an axis of extent 3."""
    shape = np.broadcast_shapes(input.shape, other.shape)
    at = shape.index(3) if dim is None else dim % len(shape)
    a, b = (meta.broadcast_to(t, shape) for t in (input, other))
    ahead, behind = (-1, at), (1, at)
    return meta.roll(a, *ahead) * meta.roll(b, *behind) - meta.roll(a, *behind) * meta.roll(
        b, *ahead
    )


def matrix_power(A: Any, n: int) -> Any:
    """Repeated products of matrices."""
    if n < 0:
        return matrix_power(meta.linalg_inv(A), -n)
    if n == 0:
        unit = meta.array(np.eye(A.shape[-1]), A.dtype)
        return meta.broadcast_to(unit, A.shape)
    y = A
    for _ in range(n - 1):
        y = y @ A
    return meta.copy(A) if n == 1 else y


def multi_dot(tensors: Any) -> Any:
    """The product of many."""
    y = tensors[0]
    for t in tensors[1:]:
        y = y @ t
    return y


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """x1' W x2 for every output."""
    lead = input1.shape[:-1]
    left = tensordot(input1, weight, ([-1], [1]))
    y = meta.sum(left * meta.expand_dims(input2, len(lead)), -1)
    return y if bias is None else y + bias


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariance of rows, of observations that may have counts and weights."""
    input = real(input)
    x = meta.reshape(input, (1, -1)) if input.ndim < 2 else input
    given = [w for w in (fweights, aweights) if w is not None]
    weights = given[0] * given[1] if len(given) == 2 else given[0] if given else None
    weighted = x if weights is None else x * weights
    total = x.shape[1] if weights is None else meta.sum(weights)
    centred = x - meta.sum(weighted, 1, True) / total
    if aweights is not None and correction:
        lost = meta.sum(weights * aweights) * correction / total
    else:
        lost = correction
    rows = centred if weights is None else centred * weights
    left = meta.cast_like(meta.maximum(total - lost, 0), rows) if given else max(total - lost, 0)
    return meta.squeeze(
        meta.matmul(rows, meta.swapaxes(meta.cast_like(centred, rows), 0, 1)) / left
    )


def corrcoef(input: Any) -> Any:
    """The correlation of rows."""
    c = cov(input)
    if c.ndim == 0:
        return c / c
    deviation = meta.sqrt(meta.diagonal(c))
    return meta.clip(c / meta.expand_dims(deviation, 1) / deviation, -1.0, 1.0)


def matrix_norm(
    A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Norms of matrices."""
    x = A if dtype is None else meta.astype(A, dtype)
    if ord in ("nuc", 2, -2):
        return meta.linalg.norm(x, ord, tuple(dim), keepdim)
    if ord == "fro":
        return norm(x, 2, dim, keepdim)
    rows, columns = (d % x.ndim for d in dim)
    first, last = (rows, columns) if abs(ord) == 1 else (columns, rows)
    choose = meta.max if ord > 0 else meta.min
    sums = meta.sum(meta.abs(x), first, True)
    return choose(sums, (first, last), keepdim)


def linalg_norm(
    A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A norm of vectors, or, of two axes with an order, of matrices."""
    of_matrices = ord is not None and (
        (dim is None and A.ndim == 2) or (isinstance(dim, tuple | list) and len(dim) == 2)
    )
    if of_matrices:
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return norm(A, 2 if ord is None else ord, dim, keepdim, dtype)


def vander(x: Any, *, N: int | None = None) -> Any:
    """Powers of every element from 0 on."""
    x = at_least_1d(x)
    count = x.shape[-1] if N is None else N
    exponents = meta.astype(meta.arange(0, count, 1, "int64"), x.dtype)
    return meta.pow(meta.expand_dims(x, -1), exponents)


def euclidean(x1: Any, x2: Any, p: float) -> Any:
    """Return the distances of the rows of two matrices."""
    return norm(meta.expand_dims(x1, -2) - meta.expand_dims(x2, -3), p, -1)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along an axis."""
    shape = np.broadcast_shapes(x1.shape, x2.shape)
    both = [meta.broadcast_to(x, shape) for x in (x1, x2)]
    units = [x / meta.maximum(norm(x, 2, dim, True), eps) for x in both]
    return meta.sum(units[0] * units[1], axes(units[0], dim))


def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """Vectors scaled to the norm 1."""
    return input / meta.maximum(norm(input, p, dim if input.ndim else None, True), eps)


def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """The norm of differences of rows."""
    return norm(x1 - x2 + eps, p, -1, keepdim)


def pdist(input: Any, p: float = 2.0) -> Any:
    """The distances of all pairs of rows."""
    first, second = np.triu_indices(input.shape[0], 1)
    rows = [meta.index_select(input, 0, meta.array(i.astype(np.int64))) for i in (first, second)]
    return norm(rows[0] - rows[1], p, -1)


def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Slices along an axis scaled down to a largest norm."""
    others = tuple(i for i in range(input.ndim) if i != axis_of(input, dim))
    length = norm(input, p, others, True)
    return input * meta.where(length > maxnorm, maxnorm / (length + 1e-7), 1.0)


ADAPTERS = {
    "__rmatmul__": lambda input, other: other @ input,
    "addbmm": lambda input, a, b, *, beta=1, alpha=1: plus(
        input, meta.sum(meta.batch_matmul(a, b), 0), beta, alpha
    ),
    "addmm": lambda input, a, b, *, beta=1, alpha=1: plus(input, meta.matmul(a, b), beta, alpha),
    "addmm|decomposed": lambda input, a, b, *, beta=1, alpha=1: plus(
        input, meta.matmul(a, b), beta, alpha
    ),
    "addmv": lambda input, a, v, *, beta=1, alpha=1: plus(input, a @ v, beta, alpha),
    "addr": lambda input, a, b, *, beta=1, alpha=1: plus(input, outer(a, b), beta, alpha),
    "baddbmm": lambda input, a, b, *, beta=1, alpha=1: plus(
        input, meta.batch_matmul(a, b), beta, alpha
    ),
    "bmm": meta.batch_matmul,
    "cdist": lambda x1, x2, p=2.0, compute_mode=None: euclidean(x1, x2, p),
    "corrcoef": corrcoef,
    "cov": cov,
    "cross": cross,
    "dot": lambda a, b: a @ b,
    "einsum": lambda tensors, equation: meta.einsum(equation, *tensors),
    "inner": inner,
    "kron": kron,
    "linalg.cross": lambda input, other, *, dim=-1: cross(input, other, dim),
    "linalg.matrix_norm": matrix_norm,
    "linalg.matrix_power": matrix_power,
    "linalg.multi_dot": multi_dot,
    "linalg.norm": linalg_norm,
    "linalg.norm|subgradients_at_zero": linalg_norm,
    "linalg.vander": vander,
    "linalg.vecdot": vecdot,
    "matmul": lambda a, b: a @ b,
    "mm": meta.matmul,
    "mv": lambda a, b: a @ b,
    "nn.functional.bilinear": bilinear,
    "nn.functional.cosine_similarity": cosine_similarity,
    "nn.functional.linear": meta.linear,
    "nn.functional.normalize": normalize,
    "nn.functional.pairwise_distance": pairwise_distance,
    "nn.functional.pdist": pdist,
    "outer": outer,
    "renorm": renorm,
    "tensordot": tensordot,
    "vdot": lambda a, b: a @ b,
}
