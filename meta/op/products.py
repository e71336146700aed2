"""Products of vectors, and over several axes; distances of vectors and angles between them.
Composed of operators.
"""

from __future__ import annotations

import math
from math import prod
from typing import Any

from meta import op
from meta.base.dtype import COMPLEX, is_float
from meta.base.errors import ArgumentError, TypeInferError
from meta.op.arithmetic import add
from meta.op.core.check import normalize_axis, shapes_compatible
from meta.op.core.function import as_operand, function
from meta.op.elementwise import astype
from meta.op.fourier import conj
from meta.op.linalg import dense, matmul
from meta.op.loss_reduction import type_text
from meta.op.reduce import sum
from meta.op.shapes import expand_dims, permute_dims, reshape, swapaxes


def _error(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=name, **more)


@function
def matrix_transpose(x: Any, /) -> Any:
    """Return each matrix, (..., m, n), with its two axes exchanged.

    Raises TypeInferError for fewer axes.

    >>> meta.matrix_transpose(meta.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    x = as_operand(x)
    if x.ndim < 2:
        found = f"shape {x.shape}"
        what = "x must be a matrix"
        raise _error("matrix_transpose", what, expected="at least 2 axes", found=found)
    return swapaxes(x, -1, -2)


@function
def outer(x1: Any, x2: Any, /) -> Any:
    """Return the products of each element of one vector with each of another.

    >>> meta.outer(meta.array([1, 2]), meta.array([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    x1, x2 = as_operand(x1), as_operand(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        found = f"{x1.ndim} and {x2.ndim} axes"
        raise _error("outer", "x1 and x2 must be vectors", expected="1 axis each", found=found)
    return expand_dims(x1, 1) * expand_dims(x2, 0)


@function
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``x @ weight.T + bias``, a fully connected layer, as torch's.

    x: (..., k). weight: (n, k), or (k,) for a result without that axis. bias: (n,), or () beside a
    vector. All of one dtype. Result: (..., n).
    Raises TypeInferError for other axes, different extents, and a bias that does not fit.

    >>> meta.linear(meta.ones((4, 3)), meta.ones((2, 3)), meta.zeros(2)).shape
    (4, 2)
    """
    x, weight = as_operand(x), as_operand(weight)
    found = f"x{list(x.shape)}, weight{list(weight.shape)}"
    expected = "x[..., k], weight[n, k], bias[n]"
    if x.ndim == 0 or weight.ndim not in (1, 2):
        raise _error("linear", "the arrays do not fit", expected=expected, found=found)
    if not shapes_compatible(x.shape[-1:], weight.shape[-1:]):
        what = "x and weight differ in their last axis"
        raise _error("linear", what, expected=expected, found=found)
    if bias is not None and not hasattr(bias, "shape"):
        raise _error("linear", "bias is no array", expected=expected, found=repr(bias))
    if bias is not None:
        bias = as_operand(bias)
        if not shapes_compatible(bias.shape, weight.shape[:-1]):
            found = f"{found}, bias{list(bias.shape)}"
            raise _error("linear", "bias does not fit", expected=expected, found=found)
    if weight.ndim == 1 or x.ndim == 1:
        y = matmul(x, weight if weight.ndim == 1 else swapaxes(weight, 0, 1))
    else:
        count = prod(x.shape[:-1]) if 0 in x.shape else -1
        rows = x if x.ndim == 2 else reshape(x, (count, x.shape[-1]))
        y = dense(rows, weight)
        if x.ndim != 2:
            y = reshape(y, (*x.shape[:-1], weight.shape[0]))
    # Last, so that the addition is a neighbour of what follows and runs in one kernel with it.
    return y if bias is None else add(y, bias)


@function
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the sums of products along an axis, counted from the end; the others are broadcast.

    Of complex vectors, the conjugate of x1 is multiplied.

    >>> meta.vecdot(meta.array([1.0, 2.0]), meta.array([3.0, 4.0])).item()
    11.0
    """
    x1, x2 = as_operand(x1), as_operand(x2)
    common_extent(x1, x2, axis, "vecdot")
    x1 = conj(x1) if x1.dtype in COMPLEX else x1
    product = x1 * x2
    found = sum(product, axis)
    return found if found.dtype == product.dtype else astype(found, product.dtype)  # integers wrap


def common_extent(x1: Any, x2: Any, axis: int, name: str) -> Any:
    """Return the extent of an axis of both; TypeInferError for an axis that is not the same one of
    both, and for different extents.
    """
    if axis >= 0 and x1.ndim != x2.ndim:
        found = f"axis {axis} of arrays with {x1.ndim} and {x2.ndim} axes"
        raise _error(name, "the axis must be counted from the end", found=found)
    extents = [x.shape[normalize_axis(axis, x.ndim)] for x in (x1, x2)]
    if extents[0] != extents[1]:
        raise _error(name, "the vectors differ in length", found=f"{extents[0]} and {extents[1]}")
    return extents[0]


@function
def tensordot(x1: Any, x2: Any, /, axes: int | tuple[Any, Any] = 2) -> Any:
    """Return the sums of products over axes of both arrays; the others of x1 come first.

    axes: as many of the last of x1 and the first of x2, or a pair of sequences of axes. Raises
    TypeInferError for axes of different extents.

    >>> meta.tensordot(meta.ones((2, 3)), meta.ones((3, 4)), 1).shape
    (2, 4)
    """
    x1, x2 = as_operand(x1), as_operand(x2)
    if isinstance(axes, int):
        axes = (tuple(range(-axes, 0)), tuple(range(axes)))
    over1, over2 = (
        [normalize_axis(a, x.ndim) for a in o] for x, o in zip((x1, x2), axes, strict=True)
    )
    extents = [x1.shape[a] for a in over1], [x2.shape[a] for a in over2]
    if extents[0] != extents[1]:
        found = f"{extents[0]} and {extents[1]}"
        raise _error("tensordot", "the axes differ in extent", found=found)
    kept1 = [a for a in range(x1.ndim) if a not in over1]
    kept2 = [a for a in range(x2.ndim) if a not in over2]
    shape1, shape2 = [x1.shape[a] for a in kept1], [x2.shape[a] for a in kept2]
    rows, size, columns = prod(shape1), prod(extents[0]), prod(shape2)
    left = reshape(permute_dims(x1, (*kept1, *over1)), (rows, size))
    right = reshape(permute_dims(x2, (*over2, *kept2)), (size, columns))
    return reshape(left @ right, (*shape1, *shape2))


@function
def dot(x1: Any, x2: Any, /) -> Any:
    """Return the sums of products over the last axis of x1 and the last but one of x2, as NumPy's.

    Of a vector the only axis is meant: two vectors give a 0-d array, two matrices their product. A
    0-d array is multiplied. Raises TypeInferError for axes of different extents.

    >>> meta.dot(meta.array([1.0, 2.0]), meta.array([3.0, 4.0])).item()
    11.0
    """
    x1, x2 = as_operand(x1), as_operand(x2)
    if not (x1.ndim and x2.ndim):
        return x1 * x2
    return tensordot(x1, x2, ((-1,), (max(x2.ndim - 2, 0),)))


# Distances between vectors and angles of them, composed of operators.


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

    >>> meta.cdist(meta.zeros((2, 3)), meta.ones((4, 3))).shape
    (2, 4)
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

    >>> meta.pairwise_distance(meta.zeros((2, 3)), meta.ones((2, 3))).shape
    (2,)
    """
    x1, x2 = _vectors("pairwise_distance", p, x1, x2)
    return vector_norm(x1 - x2 + eps, p, -1, keepdims)


@function
def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """Return the cosine of the angle of vectors along ``axis``; the others are broadcast.

    eps: the least length of a vector. As torch's.

    >>> meta.cosine_similarity(meta.ones((2, 4)), meta.ones((2, 4))).shape
    (2,)
    """
    x1, x2 = _vectors("cosine_similarity", 2, x1, x2)
    x1, x2 = op.broadcast_arrays(x1, x2)
    lengths = [op.maximum(vector_norm(x, 2, axis, True), eps) for x in (x1, x2)]
    return op.sum((x1 / lengths[0]) * (x2 / lengths[1]), axis)


@function
def normalize(x: Any, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Any:
    """Return vectors along ``axis`` divided by their p-norm, or by ``eps`` if that is larger.

    As torch's. `l2_normalize` bounds the square of the length instead.

    >>> meta.normalize(meta.array([[0.0, 2.0]])).tolist()
    [[0.0, 1.0]]
    """
    (x,) = _vectors("normalize", p, x)
    return x / op.maximum(vector_norm(x, p, axis, True), eps)
