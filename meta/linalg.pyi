"""Linear algebra by the names of the Array API standard, 2024.12: ``meta.linalg.svd``.

Written by `python -m tools.stubs`.
"""

from meta.runtime.array_types import ArrayLike
from meta.runtime.ndarray import ndarray
from typing import NamedTuple

class EigResult(NamedTuple):
    """Eigenvalues, and eigenvectors in columns, both complex."""

    eigenvalues: ndarray
    eigenvectors: ndarray

class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors in columns."""

    eigenvalues: ndarray
    eigenvectors: ndarray

class LUFactorResult(NamedTuple):
    """Two triangles in one matrix, and the exchanges of rows, counted from 1."""

    LU: ndarray
    pivots: ndarray

class LstsqResult(NamedTuple):
    """The solution, the sum of squares of what it leaves of each column, the rank of the matrix and
    its singular values."""

    solution: ndarray
    residuals: ndarray
    rank: ndarray
    singular_values: ndarray

class QRResult(NamedTuple):
    """A matrix with orthonormal columns, and an upper triangle."""

    Q: ndarray
    R: ndarray

class SVDResult(NamedTuple):
    """Left singular vectors in columns, singular values, right singular vectors in rows."""

    U: ndarray
    S: ndarray
    Vh: ndarray

class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: ndarray
    logabsdet: ndarray

def cholesky(x: ArrayLike, upper: bool = False, *, out: ndarray | None = None) -> ndarray:
    """The triangle l with ``x = l @ l.T`` of each symmetric positive definite matrix."""

def cross(x1: ArrayLike, x2: ArrayLike, *, axis: int = -1) -> ndarray:
    """Return the cross products of vectors of 3 elements along an axis; the others are broadcast."""

def det(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The determinant of each square matrix; 1 if it has no elements."""

def diagonal(x: ArrayLike, *, offset: int = 0) -> ndarray:
    """Return the diagonal of each matrix, ``offset`` columns to the right of the main one."""

def eig(x: ArrayLike) -> EigResult:
    """Return eigenvalues and vectors of each square matrix; see `meta.op.linalg_eig`."""

def eigh(x: ArrayLike) -> EighResult:
    """Return eigenvalues and vectors of each symmetric matrix; see `meta.op.linalg_eigh`."""

def eigvals(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The eigenvalues of each square matrix, complex, in the order of `linalg_eig`."""

def eigvalsh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The eigenvalues of each symmetric matrix, in ascending order."""

def inv(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The inverse of each square matrix."""

def lstsq(x1: ArrayLike, x2: ArrayLike, rtol: float | None = None) -> LstsqResult:
    """Return the y of least norm among those that make ``x1 @ y - x2`` least; see `LstsqResult`."""

def lu_factor(x: ArrayLike) -> LUFactorResult:
    """Return the LU decomposition of each matrix; see `meta.op.linalg_lu_factor`."""

def lu_solve(
    lu: ArrayLike,
    pivots: ArrayLike,
    x2: ArrayLike,
    adjoint: bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The solution y of ``x1 @ y = x2`` for the x1 of which `linalg_lu_factor` gave lu and pivots."""

def matmul(x1: ArrayLike, x2: ArrayLike) -> ndarray:
    """Return ``x1 @ x2``: products of vectors, of matrices, or of batches of them."""

def matrix_exp(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The exponential of each square matrix, the sum of x**k / k!."""

def matrix_norm(
    x: ArrayLike,
    *,
    keepdims: bool = False,
    ord: float | str | None = 'fro',
) -> ndarray:
    """Return the norm of each matrix, (..., m, n)."""

def matrix_power(x: ArrayLike, n: int) -> ndarray:
    """Return the product of ``n`` times each square matrix: by squaring, of the inverse for a
    negative n, and the identity for 0.
    """

def matrix_rank(x: ArrayLike, *, rtol: float | ArrayLike | None = None) -> ndarray:
    """Return how many singular values of each matrix are larger than ``rtol`` times the largest."""

def matrix_transpose(x: ArrayLike, /) -> ndarray:
    """Return each matrix, (..., m, n), with its two axes exchanged."""

def norm(
    x: ArrayLike,
    ord: float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> ndarray:
    """Return a norm as `numpy.linalg.norm`: of vectors along one axis (`vector_norm`), of matrices
    in two (`matrix_norm`).
    """

def outer(x1: ArrayLike, x2: ArrayLike, /) -> ndarray:
    """Return the products of each element of one vector with each of another."""

def pinv(x: ArrayLike, *, rtol: float | ArrayLike | None = None) -> ndarray:
    """Return the Moore-Penrose inverse of each matrix; see `meta.op.linalg_pinv`."""

def qr(x: ArrayLike, *, mode: str = 'reduced') -> QRResult:
    """Return the QR decomposition of each matrix; see `meta.op.linalg_qr`."""

def slogdet(x: ArrayLike) -> SlogdetResult:
    """Return sign and log(|det|) of each square matrix; see `meta.op.linalg_slogdet`."""

def solve(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The solution y of ``x1 @ y = x2``."""

def solve_triangular(
    x1: ArrayLike,
    x2: ArrayLike,
    upper: bool,
    unitriangular: bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The solution y of ``x1 @ y = x2`` with a triangular x1, whose other triangle is not read."""

def svd(x: ArrayLike, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition of each matrix; see `meta.op.linalg_svd`."""

def svdvals(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The singular values of each matrix, in descending order."""

def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    axes: int | tuple[ArrayLike, ArrayLike] = 2,
) -> ndarray:
    """Return the sums of products over axes of both arrays; the others of x1 come first."""

def trace(x: ArrayLike, *, offset: int = 0, dtype: str | None = None) -> ndarray:
    """Return the sum of the diagonal of each matrix, cast to ``dtype`` before."""

def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> ndarray:
    """Return the sums of products along an axis, counted from the end; the others are broadcast."""

def vector_norm(
    x: ArrayLike,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> ndarray:
    """Return ``sum(|x| ** ord) ** (1 / ord)`` over axes; None means all axes."""
