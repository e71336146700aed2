"""Linear algebra by the names of the Array API standard, 2024.12: ``meta.linalg.svd``.

A matrix is the last two axes of an array, those before them are batch axes. Inverses, systems and
decompositions are operators (`meta/op/decomposition.py`); the other functions here are composed of
operators. So all of them can be traced, compiled and differentiated. Matrices are float32,
float64 or complex; a norm takes half precision, too, and computes in float32.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from meta import op
from meta.base.did_you_mean import unknown_attribute
from meta.base.dtype import COMPLEX, REAL_OF, has_gradient
from meta.base.errors import TypeInferError
from meta.base.signature_check import check_signature
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.function import as_operand
from meta.op.products import (
    common_extent,
    matrix_transpose,
    nonzero_indicator,
    outer,
    tensordot,
    vecdot,
)

__all__ = [
    "EigResult",
    "EighResult",
    "LUFactorResult",
    "LstsqResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "lu_factor",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.linalg", name, __all__)


Array = Any
"""An array, a traced one, or what `meta.array` takes."""

inv = op.linalg_inv
solve = op.linalg_solve
solve_triangular = op.linalg_solve_triangular
det = op.linalg_det
cholesky = op.linalg_cholesky
svdvals = op.linalg_svdvals
eigvalsh = op.linalg_eigvalsh
eigvals = op.linalg_eigvals
lu_solve = op.linalg_lu_solve
matrix_exp = op.linalg_matrix_exp


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value.

    >>> sign, logabsdet = meta.linalg.slogdet(meta.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> sign.item(), logabsdet.item()
    (-1.0, 0.0)
    """

    sign: Array
    logabsdet: Array


class QRResult(NamedTuple):
    """A matrix with orthonormal columns, and an upper triangle.

    >>> Q, R = meta.linalg.qr(meta.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> Q.shape, R[1, 0].item(), round(abs(R[0, 0].item()), 4)
    ((2, 2), 0.0, 5.0)
    """

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """Left singular vectors in columns, singular values, right singular vectors in rows.

    >>> x = meta.array([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    >>> U, S, Vh = meta.linalg.svd(x, full_matrices=False)
    >>> U.shape, S.tolist(), Vh.shape
    ((3, 2), [2.0, 1.0], (2, 2))
    """

    U: Array
    S: Array
    Vh: Array


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors in columns.

    >>> found = meta.linalg.eigh(meta.array([[2.0, 0.0], [0.0, 1.0]]))
    >>> found.eigenvalues.tolist(), meta.abs(found.eigenvectors).tolist()
    ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """Eigenvalues, and eigenvectors in columns, both complex.

    >>> values, vectors = meta.linalg.eig(meta.array([[0.0, 1.0], [-1.0, 0.0]]))
    >>> values.dtype, meta.imag(values).tolist(), vectors.shape
    ('complex64', [1.0, -1.0], (2, 2))
    """

    eigenvalues: Array
    eigenvectors: Array


class LUFactorResult(NamedTuple):
    """Two triangles in one matrix, and the exchanges of rows, counted from 1.

    >>> LU, pivots = meta.linalg.lu_factor(meta.array([[1.0, 2.0], [4.0, 2.0]]))
    >>> LU.tolist(), pivots.tolist()
    ([[4.0, 2.0], [0.25, 1.5]], [2, 2])
    """

    LU: Array
    pivots: Array


class LstsqResult(NamedTuple):
    """The solution, the sum of squares of what it leaves of each column, the rank of the matrix and
    its singular values.

    >>> A, b = meta.array([[1.0], [1.0]]), meta.array([[1.0], [3.0]])
    >>> found = meta.linalg.lstsq(A, b)
    >>> [meta.round(each, 4).tolist() for each in (found.solution, found.residuals, found.rank)]
    [[[2.0]], [2.0], 1]
    """

    solution: Array
    residuals: Array
    rank: Array
    singular_values: Array


def slogdet(x: Array) -> SlogdetResult:
    """Return sign and log(|det|) of each square matrix; see `meta.op.linalg_slogdet`.

    >>> sign, logarithm = meta.linalg.slogdet(meta.eye(3))
    >>> sign.item(), logarithm.item()
    (1.0, 0.0)
    """
    return SlogdetResult(*op.linalg_slogdet(x))


def qr(x: Array, *, mode: str = "reduced") -> QRResult:
    """Return the QR decomposition of each matrix; see `meta.op.linalg_qr`.

    >>> q, r = meta.linalg.qr(meta.random.normal((4, 3)))
    >>> q.shape, r.shape
    ((4, 3), (3, 3))
    """
    return QRResult(*op.linalg_qr(x, mode))


def svd(x: Array, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition of each matrix; see `meta.op.linalg_svd`.

    >>> u, s, vh = meta.linalg.svd(meta.random.normal((4, 3)), full_matrices=False)
    >>> u.shape, s.shape, vh.shape
    ((4, 3), (3,), (3, 3))
    """
    return SVDResult(*op.linalg_svd(x, full_matrices))


def eigh(x: Array) -> EighResult:
    """Return eigenvalues and vectors of each symmetric matrix; see `meta.op.linalg_eigh`.

    >>> values, vectors = meta.linalg.eigh(meta.eye(3))
    >>> values.tolist(), vectors.shape
    ([1.0, 1.0, 1.0], (3, 3))
    """
    return EighResult(*op.linalg_eigh(x))


def eig(x: Array) -> EigResult:
    """Return eigenvalues and vectors of each square matrix; see `meta.op.linalg_eig`.

    >>> values, vectors = meta.linalg.eig(meta.eye(2))
    >>> values.dtype, vectors.shape
    ('complex64', (2, 2))
    """
    return EigResult(*op.linalg_eig(x))


def lu_factor(x: Array) -> LUFactorResult:
    """Return the LU decomposition of each matrix; see `meta.op.linalg_lu_factor`.

    >>> lu, pivots = meta.linalg.lu_factor(meta.eye(3))
    >>> lu.shape, pivots.shape
    ((3, 3), (3,))
    """
    return LUFactorResult(*op.linalg_lu_factor(x))


def _refused(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=f"linalg.{name}", **more)


def _matrix(x: Array, name: str) -> Array:
    """Return a matrix, or a batch of them; TypeInferError for fewer axes."""
    x = as_operand(x)
    if x.ndim < 2:
        raise _refused(name, "x must be a matrix", expected="at least 2 axes", found=repr(x.shape))
    return x


def _wide(x: Array, name: str) -> Array:
    """Return floating point or complex numbers in at least float32; TypeInferError for others."""
    x = as_operand(x)
    if not has_gradient(x.dtype):
        raise _refused(
            name,
            "x must be floating point",
            expected="float16 to float64, complex64 or complex128",
            found=x.dtype,
            hint='cast it first: meta.astype(x, "float32")',
        )
    return op.astype(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _as(x: Array, like: Array) -> Array:
    """Return what was computed `_wide` in the dtype of the argument, or of its parts."""
    dtype = REAL_OF.get(as_operand(like).dtype, as_operand(like).dtype)
    return x if x.dtype == dtype else op.astype(x, dtype)


def _root(x: Array, ord: float) -> Array:
    """Return x ** (1 / ord) of numbers that are not negative; the gradient at 0 is taken as 0."""
    zero = x == 0
    positive = op.where(zero, op.ones_like(x), x)
    root = op.sqrt(positive) if ord == 2 else op.pow(positive, 1.0 / ord)
    return op.where(zero, op.zeros_like(x), root)


def _square(x: Array) -> Array:
    """Return |x| ** 2, real numbers."""
    return op.real(x * op.conj(x)) if x.dtype in COMPLEX else x * x


def _summed(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return op.sum(x, axes, keepdims) if axes else x


def vector_norm(
    x: Array,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Array:
    """Return ``sum(|x| ** ord) ** (1 / ord)`` over axes; None means all axes.

    x: floating point or complex. ord: also inf and -inf (the largest and the smallest |x|) and 0
    (the number of elements that are not 0). keepdims: the axes stay with extent 1. The gradient of
    a norm that is 0 is taken as 0. Raises TypeInferError for other dtypes and axes, and for the
    largest or smallest of no elements.

    >>> x = meta.array([[3.0, -4.0], [0.0, 2.0]])
    >>> meta.linalg.vector_norm(x, axis=1).tolist(), meta.linalg.vector_norm(x, ord=1).item()
    ([5.0, 2.0], 9.0)
    """
    wide = _wide(x, "vector_norm")
    every = tuple(range(wide.ndim))
    axes = axis if axis is None or axis == () else normalize_axes(axis, wide.ndim)
    axes = every if axes is None else axes
    magnitude = op.abs(wide)
    if ord in (inf, -inf):
        choose = op.max if ord > 0 else op.min
        found = choose(magnitude, axes, keepdims) if axes else magnitude
    elif ord == 0:
        found = _summed(nonzero_indicator(magnitude), axes, keepdims)
    elif ord == 1:
        found = _summed(magnitude, axes, keepdims)
    elif ord < 0:  # 0 where an element is 0, whose power is infinite
        flat = op.equal(magnitude, 0)
        powers = op.pow(op.where(flat, 1.0, magnitude), float(ord))
        found = op.pow(_summed(powers, axes, keepdims), 1.0 / ord)
        found = op.where(op.any(flat, axes, keepdims) if axes else flat, 0.0 * found, found)
    else:
        powers = _square(wide) if ord == 2 else op.pow(magnitude, float(ord))
        found = _root(_summed(powers, axes, keepdims), ord)
    return _as(found, x)


def matrix_norm(x: Array, *, keepdims: bool = False, ord: float | str | None = "fro") -> Array:
    """Return the norm of each matrix, (..., m, n).

    ord: "fro", or None, the root of the sum of squares; "nuc" the sum of the singular values, 2 and
    -2 the largest and the smallest one; 1 and -1 the largest and the smallest sum of |x| of a
    column, inf and -inf of a row. keepdims: both axes stay with extent 1. Raises TypeInferError for
    another ord or fewer axes, and for the largest or smallest of nothing.

    >>> meta.linalg.matrix_norm(meta.array([[3.0, 0.0], [0.0, 4.0]])).item()
    5.0
    """
    wide = _wide(_matrix(x, "matrix_norm"), "matrix_norm")
    if ord in ("fro", None):
        found = _root(op.sum(_square(wide), (-2, -1)), 2)
    elif ord == "nuc":
        found = op.sum(svdvals(wide), -1)
    elif ord in (2, -2):
        found = (op.max if ord == 2 else op.min)(svdvals(wide), -1)
    elif ord in (1, -1, inf, -inf):
        sums = op.sum(op.abs(wide), -2 if ord in (1, -1) else -1)
        found = (op.max if ord in (1, inf) else op.min)(sums, -1)
    else:
        orders = "'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        raise _refused("matrix_norm", "unknown ord", expected=orders, found=repr(ord))
    return _as(op.expand_dims(found, -1, 2) if keepdims else found, x)


def norm(
    x: Array,
    ord: float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Array:
    """Return a norm as `numpy.linalg.norm`: of vectors along one axis (`vector_norm`), of matrices
    in two (`matrix_norm`).

    Without an axis, x is a vector or a matrix; without ord either, it may have any axes, and the
    result is the root of the sum of all squares. Raises TypeInferError for other axes.

    >>> meta.linalg.norm(meta.array([3.0, 4.0])).item()
    5.0
    """
    x = as_operand(x)
    if ord is None and (axis is None or isinstance(axis, int) or len(axis) <= 2):
        return vector_norm(x, axis=axis, keepdims=keepdims)
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    if len(axes) == 1 and not isinstance(ord, str):
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2:
        raise _refused(
            "norm",
            "this norm is that of a vector or a matrix",
            expected="one axis or two; for ord 'fro' and 'nuc' two",
            found=f"{len(axes)} axes of an array with {x.ndim}",
            hint="name axes, or meta.linalg.vector_norm for any number of them",
        )
    places = [normalize_axis(a, x.ndim) for a in axes]
    if places[0] == places[1]:
        raise _refused("norm", "an axis is named twice", found=axes)
    rest = [a for a in range(x.ndim) if a not in places]
    found = matrix_norm(op.permute_dims(x, (*rest, *places)), ord=ord)
    for place in sorted(places) if keepdims else ():
        found = op.expand_dims(found, place)
    return found


def matmul(x1: Array, x2: Array) -> Array:
    """Return ``x1 @ x2``: products of vectors, of matrices, or of batches of them.

    >>> meta.linalg.matmul(meta.ones((2, 3)), meta.ones((3, 4))).shape
    (2, 4)
    """
    return as_operand(x1) @ as_operand(x2)


def pinv(x: Array, *, rtol: float | Array | None = None) -> Array:
    """Return the Moore-Penrose inverse of each matrix; see `meta.op.linalg_pinv`.

    rtol: a number, or an array of one for each matrix: singular values up to it times the largest
    count as 0.

    >>> meta.linalg.pinv(meta.ones((2, 3))).shape
    (3, 2)
    """
    if rtol is None or isinstance(rtol, int | float):
        return op.linalg_pinv(x, rtol)
    x = _matrix(x, "pinv")
    u, s, vh = op.linalg_svd(x, False)
    if s.shape[-1]:
        kept = s > op.max(s, -1, True) * op.expand_dims(rtol, -1)
        s = op.where(kept, 1.0 / op.where(kept, s, 1.0), 0.0)
    return _adjoint(vh) @ (op.expand_dims(op.astype(s, x.dtype), -1) * _adjoint(u))


def _adjoint(x: Array) -> Array:
    """Return the conjugate transpose."""
    return matrix_transpose(op.conj(x) if x.dtype in COMPLEX else x)


def matrix_rank(x: Array, *, rtol: float | Array | None = None) -> Array:
    """Return how many singular values of each matrix are larger than ``rtol`` times the largest.

    x: (..., m, n). rtol: a number, or an array of one for each matrix; None is max(m, n) times the
    spacing of numbers at 1. Result: (...), int64.

    >>> meta.linalg.matrix_rank(meta.ones((3, 3))).item()
    1
    """
    x = _matrix(x, "matrix_rank")
    return _rank(x, svdvals(x), rtol)


def _rank(x: Array, s: Array, rtol: float | Array | None) -> Array:
    if s.shape[-1] == 0:
        return op.sum(op.astype(s, "int64"), -1)
    if rtol is None:
        least = max(x.shape[-2:]) * {"float32": 2.0**-23, "float64": 2.0**-52}[s.dtype]
    else:
        least = rtol if isinstance(rtol, int | float) else op.expand_dims(rtol, -1)
    return op.sum(op.astype(s > op.max(s, -1, True) * least, "int64"), -1)


def matrix_power(x: Array, n: int) -> Array:
    """Return the product of ``n`` times each square matrix: by squaring, of the inverse for a
    negative n, and the identity for 0.

    x: (..., k, k), float32 or float64. Raises TypeInferError for a matrix that is not square, and
    LinAlgError for a negative n and a singular matrix.

    >>> meta.linalg.matrix_power(meta.array([[1.0, 1.0], [0.0, 1.0]]), 3).tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    x = _matrix(x, "matrix_power")
    if x.shape[-1] != x.shape[-2]:
        raise _refused("matrix_power", "x must be a square matrix", found=repr(x.shape))
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        return op.triu(op.tril(op.ones_like(x)))
    product, square = None, x
    while True:
        if n % 2:
            product = square if product is None else product @ square
        n //= 2
        if n == 0:
            return product
        square = square @ square


@check_signature
def lstsq(x1: Array, x2: Array, rtol: float | None = None) -> LstsqResult:
    """Return the y of least norm among those that make ``x1 @ y - x2`` least; see `LstsqResult`.

    x1: (..., m, n), float32 or float64. x2: a vector (m,) or matrices (..., m, k). rtol: singular
    values up to ``rtol`` times the largest count as 0; None as in `pinv`, by which the solution is
    computed. Unlike numpy's, residuals are returned for every rank.

    >>> solution = meta.linalg.lstsq(meta.random.normal((5, 2)), meta.ones((5, 1)))[0]
    >>> solution.shape
    (2, 1)
    """
    x1, x2 = _matrix(x1, "lstsq"), as_operand(x2)
    if x1.dtype in COMPLEX:
        raise _refused("lstsq", "x1 must be real", found=x1.dtype, hint="pinv(x1) @ x2")
    vector = x2.ndim == 1
    columns = op.expand_dims(x2, -1) if vector else x2
    y = op.linalg_pinv(x1, rtol) @ columns
    left = columns - x1 @ y
    residuals = op.sum(left * left, -2)
    s = svdvals(x1)
    solution = op.squeeze(y, -1) if vector else y
    return LstsqResult(solution, residuals, _rank(x1, s, rtol), s)


def diagonal(x: Array, *, offset: int = 0) -> Array:
    """Return the diagonal of each matrix, ``offset`` columns to the right of the main one.

    >>> meta.linalg.diagonal(meta.array([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    return op.diagonal(_matrix(x, "diagonal"), offset, -2, -1)


def trace(x: Array, *, offset: int = 0, dtype: str | None = None) -> Array:
    """Return the sum of the diagonal of each matrix, cast to ``dtype`` before.

    Signed integers and bool give int64, unsigned ones uint64.

    >>> x = meta.array([[1, 2], [3, 4]])
    >>> meta.linalg.trace(x).item(), meta.linalg.trace(x, offset=1).item()
    (5, 2)
    """
    found = diagonal(x, offset=offset)
    if dtype is None and found.dtype.startswith("uint"):
        return op.astype(op.sum(op.astype(found, "int64"), -1), "uint64")  # the same bits
    total = op.sum(found if dtype is None else op.astype(found, dtype), -1)
    return total if dtype in (None, total.dtype) else op.astype(total, dtype)


def cross(x1: Array, x2: Array, *, axis: int = -1) -> Array:
    """Return the cross products of vectors of 3 elements along an axis; the others are broadcast.

    Raises TypeInferError for vectors of another length.

    >>> meta.linalg.cross(meta.array([1.0, 0.0, 0.0]), meta.array([0.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    x1, x2 = as_operand(x1), as_operand(x2)
    extent = common_extent(x1, x2, axis, "cross")
    if extent != 3:
        raise _refused("cross", "a cross product is one of vectors of 3 elements", found=extent)

    def ahead(x: Array, by: int) -> Array:
        return op.roll(x, -by, normalize_axis(axis, x.ndim))

    return ahead(x1, 1) * ahead(x2, 2) - ahead(x1, 2) * ahead(x2, 1)
