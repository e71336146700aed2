"""Linear systems, determinants and decompositions of matrices; `meta.linalg` has their short names.

A matrix is the last two axes of a tensor, those before them are batch axes. It is float32, float64,
complex64 or complex128: a half precision matrix is refused, with the cast that makes it float32. A
matrix for which there is no result (a singular one) raises LinAlgError when the operator runs.

Of complex matrices ``x.T`` is the conjugate transpose in the products that a decomposition makes;
singular values, eigenvalues and logarithms are real. Linear systems, inverses and determinants have
gradients of complex matrices, the other functions have not.

A symmetric matrix is read from its lower triangle, as by LAPACK, numpy and torch. Its gradient is
the symmetric one, as torch's.
"""

from meta.base.dtype import REAL_OF, complex_of
from meta.base.errors import TypeInferError
from meta.ir.types import Dim
from meta.op.core import Tensor, op
from meta.op.core.axes import last
from meta.op.core.check import broadcast_shapes, require, require_same_dtype, shapes_compatible


def _require_matrix(x: Tensor, name: str) -> None:
    """Raise TypeInferError unless a tensor is a matrix, or a batch of them, of a dtype for it."""
    if x.dtype not in ("float32", "float64", *REAL_OF):
        half = x.dtype in ("float16", "bfloat16")
        raise TypeInferError(
            f"{name} must be float32 or float64" + ", not of half precision" * half,
            expected="float32, float64, complex64 or complex128",
            found=str(x),
            hint='cast it first: meta.astype(x, "float32")',
        )
    require(x.ndim >= 2, f"{name} must be a matrix", expected="at least 2 axes", found=str(x))


def _require_square(x: Tensor, name: str) -> None:
    _require_matrix(x, name)
    square = shapes_compatible(x.shape[-1:], x.shape[-2:-1])
    require(square, f"{name} must be a square matrix", expected="shape [..., n, n]", found=str(x))


def _real(x: Tensor) -> Tensor:
    """Return the type with the dtype of the parts, if it is complex."""
    return x.with_dtype(REAL_OF.get(x.dtype, x.dtype))


def _smaller(x: Tensor) -> Dim:
    """Return the smaller extent of a matrix; TypeInferError if it is not known which it is."""
    rows, columns = x.shape[-2:]
    return rows if rows == columns else min(x.with_shape((rows, columns)).static_shape)


@op(axes=last(x=2), complex=True)
def linalg_inv(x: Tensor) -> Tensor:
    """The inverse of each square matrix.

    x: (..., n, n), real or complex; the result has its type. Raises TypeInferError for other
    types and LinAlgError for a singular matrix.
    """
    _require_square(x, "x")
    return x


@op(axes=last(x=2), complex=True)
def linalg_pinv(
    x: Tensor, rtol: float | None = None, atol: float = 0.0, hermitian: bool = False
) -> Tensor:
    """The Moore-Penrose inverse of each matrix, by its singular values.

    x: (..., m, n), real or complex. Result: (..., n, m). rtol, atol: singular values up to
    ``max(atol, rtol * largest)`` count as 0; a ``rtol`` of None is max(m, n) times the spacing of
    numbers at 1, or 0 beside an ``atol``. hermitian: the matrices are symmetric, or complex and
    equal to their adjoints; the lower triangle is read. The gradient is that among matrices of the
    same rank. Raises TypeInferError for other types.
    """
    (_require_square if hermitian else _require_matrix)(x, "x")
    require(atol >= 0, "atol is at least 0", found=atol)
    return x.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))


@op(axes=last(x1=2, x2=2, broadcasts=("x1", "x2")), complex=True, promotes=("x1", "x2"))
def linalg_solve(x1: Tensor, x2: Tensor) -> Tensor:
    """The solution y of ``x1 @ y = x2``.

    x1: (..., n, n). x2: a vector (n,), or matrices (..., n, k) of the same dtype; batch axes are
    broadcast. Result: (..., n) for a vector, else (..., n, k). Raises TypeInferError for other
    types and LinAlgError for a singular matrix.
    """
    _require_square(x1, "x1")
    require_same_dtype(x1, x2)
    found = f"x1={x1}, x2={x2}"
    require(x2.ndim >= 1, "x2 must be a vector or a matrix", found=found)
    rows = x2.shape[-1:] if x2.ndim == 1 else x2.shape[-2:-1]
    require(
        shapes_compatible(rows, x1.shape[-1:]), "x2 has another number of rows than x1", found=found
    )
    if x2.ndim == 1:
        return x1.with_shape(x1.shape[:-1])
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return x1.with_shape((*batch, x1.shape[-1], x2.shape[-1]))


@op(axes=last(x1=2, x2=2, broadcasts=("x1", "x2")), complex=True, promotes=("x1", "x2"))
def linalg_solve_triangular(
    x1: Tensor, x2: Tensor, upper: bool, unitriangular: bool = False
) -> Tensor:
    """The solution y of ``x1 @ y = x2`` with a triangular x1, whose other triangle is not read.

    x1: (..., n, n), an upper triangle if ``upper``, else a lower one; with ones on the diagonal,
    which is not read either, if ``unitriangular``. x2: (..., n, k) of the same dtype; batch axes
    are broadcast. Result: (..., n, k). Raises TypeInferError for other types and LinAlgError for a
    zero on the diagonal.
    """
    _require_square(x1, "x1")
    require_same_dtype(x1, x2)
    _require_matrix(x2, "x2")
    fits = shapes_compatible(x2.shape[-2:-1], x1.shape[-1:])
    require(fits, "x2 has another number of rows than x1", found=f"x1={x1}, x2={x2}")
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return x1.with_shape((*batch, *x2.shape[-2:]))


@op(axes=last(x=2, results=(0,)), complex=True)
def linalg_det(x: Tensor) -> Tensor:
    """The determinant of each square matrix; 1 if it has no elements.

    x: (..., n, n), real or complex. Result: (...). Raises TypeInferError for other types.
    """
    _require_square(x, "x")
    return x.with_shape(x.shape[:-2])


@op(axes=last(x=2), complex=True)
def linalg_cofactor(x: Tensor) -> Tensor:
    """The cofactors of each square matrix, the gradient of `linalg_det`: det(x) * inv(x).T where
    x is regular, by singular values also where it is not.

    x: (..., n, n), real or complex; the result has its type. Its own gradient is that of
    regular matrices, and raises LinAlgError for a singular one. Raises TypeInferError for other
    types.
    """
    _require_square(x, "x")
    return x


@op(axes=last(x=2, results=(0, 0)), complex=True)
def linalg_slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """The determinant of each square matrix as (sign, log(|det|)), which do not overflow.

    x: (..., n, n), real or complex. Results: (...); sign is -1, 0 or 1, and of a singular
    matrix they are 0 and -inf. Raises TypeInferError for other types.
    """
    _require_square(x, "x")
    result = x.with_shape(x.shape[:-2])
    return result, _real(result)


@op(axes=last(x=2), complex=True)
def linalg_cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """The triangle l with ``x = l @ l.T`` of each symmetric positive definite matrix.

    x: (..., n, n), real or complex; the result has its type, with zeros in the other triangle.
    upper: u with ``x = u.T @ u`` instead. Raises TypeInferError for other types and LinAlgError
    for a matrix that is not positive definite.
    """
    _require_square(x, "x")
    return x


@op(axes=last(x=2, results=(2, 2)), complex=True)
def linalg_qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Matrices (q, r) with ``x = q @ r``, orthonormal columns in q and an upper triangle r.

    x: (..., m, n), float32 or float64. With k = min(m, n), q is (..., m, k) and r (..., k, n); with
    mode "complete", q is (..., m, m) and r (..., m, n). The gradient needs the first k columns of x
    to be independent (else LinAlgError), and for m > n the mode "reduced" (else GradientError).
    Raises TypeInferError for other types or modes.
    """
    _require_matrix(x, "x")
    modes = ("reduced", "complete")
    require(mode in modes, "unknown mode", expected=" or ".join(modes), found=repr(mode))
    *batch, m, n = x.shape
    k = m if mode == "complete" else _smaller(x)
    return x.with_shape((*batch, m, k)), x.with_shape((*batch, k, n))


@op(axes=last(x=2, results=(2, 1, 2)), complex=True)
def linalg_svd(x: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition: (u, s, vh) with ``x = u @ diag(s) @ vh``.

    x: (..., m, n), float32 or float64. With k = min(m, n), s is (..., k), in descending order; u is
    (..., m, m) and vh (..., n, n), or (..., m, k) and (..., k, n) without ``full_matrices``. The
    gradient is infinite where it depends on the vectors of equal singular values. If m is not n it
    needs ``full_matrices=False`` (else GradientError); the gradient of s alone is that of
    `linalg_svdvals`. Raises TypeInferError for other types and LinAlgError for a matrix with NaN or
    infinity.
    """
    _require_matrix(x, "x")
    *batch, m, n = x.shape
    k = _smaller(x)
    rows, columns = (m, n) if full_matrices else (k, k)
    u, vh = x.with_shape((*batch, m, rows)), x.with_shape((*batch, columns, n))
    return u, _real(x.with_shape((*batch, k))), vh


@op(axes=last(x=2, results=(1,)), complex=True)
def linalg_svdvals(x: Tensor) -> Tensor:
    """The singular values of each matrix, in descending order.

    x: (..., m, n), real or complex. Result: (..., min(m, n)). Raises TypeInferError for other
    types and LinAlgError for a matrix with NaN or infinity.
    """
    _require_matrix(x, "x")
    return _real(x.with_shape((*x.shape[:-2], _smaller(x))))


@op(axes=last(x=2, results=(1, 2)), complex=True)
def linalg_eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues, in ascending order, and eigenvectors, in columns, of symmetric matrices.

    x: (..., n, n), real or complex. Results: (..., n) and (..., n, n). The gradient is infinite
    where it depends on the vectors of equal eigenvalues. Raises TypeInferError for other types and
    LinAlgError for a matrix with NaN or infinity.
    """
    _require_square(x, "x")
    return _real(x.with_shape(x.shape[:-1])), x


@op(axes=last(x=2, results=(1,)), complex=True)
def linalg_eigvalsh(x: Tensor) -> Tensor:
    """The eigenvalues of each symmetric matrix, in ascending order.

    x: (..., n, n), real or complex. Result: (..., n). Raises TypeInferError for other types and
    LinAlgError for a matrix with NaN or infinity.
    """
    _require_square(x, "x")
    return _real(x.with_shape(x.shape[:-1]))


@op(axes=last(x=2, results=(2, 1)), complex=True)
def linalg_lu_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    """The LU decomposition with exchanges of rows, as LAPACK packs it: (lu, pivots).

    x: (..., m, n), real or complex. lu: of its type; l is below the diagonal, which is one of ones,
    u above and on it. pivots: int32 (..., min(m, n)), counted from 1: row i was exchanged with row
    ``pivots[i]``, one after the other. A singular matrix has zeros on the diagonal of u. Raises
    TypeInferError for other types.
    """
    _require_matrix(x, "x")
    return x, x.with_shape((*x.shape[:-2], _smaller(x))).with_dtype("int32")


@op(axes=last(lu=2, pivots=1, x2=2, broadcasts=("x2",)), complex=True)
def linalg_lu_solve(lu: Tensor, pivots: Tensor, x2: Tensor, adjoint: bool = False) -> Tensor:
    """The solution y of ``x1 @ y = x2`` for the x1 of which `linalg_lu_factor` gave lu and pivots.

    lu: (..., n, n). pivots: integers (..., n). x2: (..., n, k) of lu's dtype; batch axes are
    broadcast. ``adjoint``: of the conjugate transpose of x1. Result: (..., n, k). Of a singular
    matrix it has infinities or NaN. Raises TypeInferError for other types.
    """
    _require_square(lu, "lu")
    _require_matrix(x2, "x2")
    require_same_dtype(lu, x2)
    found = f"lu={lu}, pivots={pivots}, x2={x2}"
    fits = "int" in pivots.dtype and shapes_compatible(pivots.shape, lu.shape[:-1])
    expected = f"integers of shape {list(lu.shape[:-1])}"
    require(fits, "pivots do not fit lu", expected=expected, found=found)
    fits = shapes_compatible(x2.shape[-2:-1], lu.shape[-1:])
    require(fits, "x2 has another number of rows than lu", found=found)
    batch = broadcast_shapes(lu.shape[:-2], x2.shape[:-2])
    return lu.with_shape((*batch, *x2.shape[-2:]))


@op(axes=last(x=2, results=(1, 2)), complex=True)
def linalg_eig(x: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues and eigenvectors, in columns, of each square matrix; both are complex.

    x: (..., n, n), real or complex. Results: (..., n) and (..., n, n), complex64 for float32 and
    complex128 for float64. Their order, and the phases of vectors of length 1, are the library's.
    Raises TypeInferError for other types and LinAlgError for a matrix with NaN or infinity.
    """
    _require_square(x, "x")
    dtype = complex_of(x.dtype)
    return x.with_shape(x.shape[:-1]).with_dtype(dtype), x.with_dtype(dtype)


@op(axes=last(x=2, results=(1,)), complex=True)
def linalg_eigvals(x: Tensor) -> Tensor:
    """The eigenvalues of each square matrix, complex, in the order of `linalg_eig`.

    x: (..., n, n), real or complex. Result: (..., n). Raises TypeInferError for other types and
    LinAlgError for a matrix with NaN or infinity.
    """
    _require_square(x, "x")
    return x.with_shape(x.shape[:-1]).with_dtype(complex_of(x.dtype))


@op(axes=last(x=2), complex=True)
def linalg_matrix_exp(x: Tensor) -> Tensor:
    """The exponential of each square matrix, the sum of x**k / k!.

    x: (..., n, n), real or complex; the result has its type. Raises TypeInferError for other types.
    """
    _require_square(x, "x")
    return x
