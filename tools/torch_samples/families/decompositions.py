"""Linear systems, determinants and decompositions of matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meta
from meta import linalg
from tools.torch_samples.decline import Outside, outside_if
from tools.torch_samples.families.products import matrix_norm


def adjoint(x: Any) -> Any:
    """Swap the last two axes."""
    return meta.swapaxes(x, -1, -2)


def checked(function: Any) -> Any:
    """Return a function that also says, as torch's LAPACK does, that nothing went wrong."""

    def applied(input: Any, *args: Any, check_errors: bool = False, **kwargs: Any) -> Any:
        y = function(input, *args, **kwargs)
        return y, meta.zeros(input.shape[:-2], "int32")

    return applied


def cholesky(input: Any, upper: bool = False) -> Any:
    """The triangle of a symmetric positive definite matrix."""
    return meta.linalg_cholesky(input, upper)


def cholesky_solve(input: Any, L: Any, upper: bool = False) -> Any:
    """Solve a system whose matrix was decomposed."""
    first, second = (adjoint(L), L) if upper else (L, adjoint(L))
    y = meta.linalg_solve_triangular(first, input, False)
    return meta.linalg_solve_triangular(second, y, True)


def cholesky_inverse(input: Any, upper: bool = False) -> Any:
    """The inverse of a matrix that was decomposed."""
    unit = meta.broadcast_to(meta.eye(input.shape[-1], dtype=input.dtype), input.shape)
    return cholesky_solve(unit, input, upper)


def logdet(input: Any) -> Any:
    """log(det); NaN of a negative one."""
    sign, size = meta.linalg_slogdet(input)
    return size + meta.log(sign)


def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    """Solve systems; torch tells a batch of vectors from a matrix by its shape."""
    vectors = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    if not left and not vectors:
        return adjoint(meta.linalg_solve(adjoint(A), adjoint(B)))
    if vectors:
        return meta.squeeze(meta.linalg_solve(A, meta.expand_dims(B, -1)), -1)
    return meta.linalg_solve(A, B)


def solve_triangular(
    A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Solve systems with a triangle, from either side."""
    if left:
        return meta.linalg_solve_triangular(A, B, upper, unitriangular)
    y = meta.linalg_solve_triangular(adjoint(A), adjoint(B), not upper, unitriangular)
    return adjoint(y)


def triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """The older form, which also returns a copy of the matrix."""
    matrix = adjoint(A) if transpose else A
    y = meta.linalg_solve_triangular(matrix, b, upper != transpose, unitriangular)
    batch = meta.broadcast_shapes(A.shape[:-2], b.shape[:-2])
    return y, meta.broadcast_to(A, (*batch, *A.shape[-2:]))


def qr(input: Any, some: bool = True) -> Any:
    """The older form of `linalg.qr`."""
    return meta.linalg_qr(input, "reduced" if some else "complete")


def linalg_qr(A: Any, mode: str = "reduced") -> Any:
    """Orthonormal columns and a triangle; with mode "r" only the latter."""
    if mode == "r":
        return meta.zeros((0,), A.dtype), meta.linalg_qr(A)[1]
    return meta.linalg_qr(A, mode)


def svd(input: Any, some: bool = True, compute_uv: bool = True) -> Any:
    """The older form of `linalg.svd`: V instead of its transpose."""
    m, n = input.shape[-2:]
    if not compute_uv:
        u, vh = (meta.zeros((*input.shape[:-2], k, k), input.dtype) for k in (m, n))
        return u, meta.linalg_svdvals(input), vh
    u, s, vh = linalg_svd(input, not some)
    return u, s, adjoint(vh)


def linalg_svd(A: Any, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """Singular values and vectors; those that complete a basis have no gradient."""
    k = min(A.shape[-2:])
    u, s, vh = meta.linalg_svd(A, False)
    if not full_matrices or max(A.shape[-2:]) == k:
        return u, s, vh
    with meta.no_grad():
        left, _, right = meta.linalg_svd(A, True)
    return (
        meta.concat((u, left[..., k:]), -1),
        s,
        meta.concat((vh, right[..., k:, :]), -2),
    )


def symmetric(x: Any, lower: bool) -> Any:
    """Return the matrix with this triangle, as the lower one."""
    return x if lower else adjoint(x)


def rank_bound(A: Any, s: Any, tol: Any, atol: Any, rtol: Any) -> Any:
    """Return up to which size singular values count as 0."""
    least = max(A.shape[-2:]) * {"float32": 2.0**-23, "float64": 2.0**-52}[A.dtype]
    if tol is not None:
        atol, rtol = tol, 0.0
    if rtol is None:
        zero = atol is None or (isinstance(atol, int | float) and atol <= 0)
        rtol = least if zero else 0.0
        if hasattr(atol, "dtype"):
            rtol = meta.where(atol > 0, 0.0, meta.full_like(atol, least))
    absolute = 0.0 if atol is None else atol
    largest = meta.max(s, -1)
    by_rtol = largest * (rtol if isinstance(rtol, int | float) else meta.cast_like(rtol, s))
    if hasattr(absolute, "dtype"):
        absolute = meta.cast_like(absolute, s)
    return meta.expand_dims(meta.maximum(by_rtol, absolute), -1)


def matrix_rank(
    A: Any, tol: Any = None, *, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Any:
    """How many singular values are not 0."""
    if 0 in A.shape[-2:]:
        return meta.zeros(A.shape[:-2], "int64")
    s = meta.abs(meta.linalg_eigvalsh(A)) if hermitian else meta.linalg_svdvals(A)
    return meta.count_nonzero(s > rank_bound(A, s, tol, atol, rtol), axis=-1)


def pinv(
    A: Any, rcond: Any = None, *, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Any:
    """The Moore-Penrose inverse."""
    rtol = rcond if rtol is None else rtol
    if 0 in A.shape[-2:]:
        return meta.linalg_pinv(A)
    if not hasattr(atol, "dtype") and not hasattr(rtol, "dtype"):
        return meta.linalg_pinv(A, rtol, atol or 0.0, hermitian)
    u, s, vh = meta.linalg_svd(A, False)
    kept = s > rank_bound(A, s, None, atol, rtol)
    inverse = meta.where(kept, 1.0 / meta.where(kept, s, 1.0), 0.0)
    return adjoint(vh) @ (meta.expand_dims(inverse, -1) * adjoint(u))


def pinv_of_product(a: Any, b: Any) -> Any:
    """The sample builds a matrix of low rank from two thin ones."""
    return pinv(a @ adjoint(b))


def lstsq(A: Any, B: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """The least squares solution, residuals, rank and singular values, as a LAPACK driver does."""
    vectors = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    columns = meta.expand_dims(B, -1) if vectors else B
    m, n = A.shape[-2:]
    y = meta.linalg_pinv(A, rcond) @ columns
    rank = matrix_rank(A)
    residuals = meta.zeros((0,), A.dtype)
    full = m > n and bool(meta.all(rank == n))
    if full and driver != "gelsy":
        left = columns - A @ y
        residuals = meta.sum(left * left, -2)
    s = meta.linalg_svdvals(A) if driver in ("gelss", "gelsd") else meta.zeros((0,), A.dtype)
    ranked = rank if driver != "gels" else meta.zeros((0,), "int64")
    return meta.squeeze(y, -1) if vectors else y, residuals, ranked, s


def low_rank(a: Any, b: Any, q: int, M: Any = None, center: bool = False) -> Any:
    """The first singular values and vectors of a product of two thin matrices."""
    outside_if(M is not None, Outside.RANDOM)  # what is left is of full rank
    x = a @ adjoint(b)
    if center:
        x = x - meta.mean(x, -2, True)
    u, s, vh = meta.linalg_svd(x, False)
    return u[..., :q], s[..., :q], adjoint(vh)[..., :q]


def tensorinv(A: Any, ind: int = 2) -> Any:
    """The inverse of a tensor as a map of tensors."""
    rows, columns = A.shape[:ind], A.shape[ind:]
    matrix = meta.reshape(A, (math.prod(rows), math.prod(columns)))
    return meta.reshape(meta.linalg_inv(matrix), (*columns, *rows))


def tensorsolve(A: Any, B: Any, dims: Any = None) -> Any:
    """Solve a system of tensors."""
    if dims is not None:
        moved = [d % A.ndim for d in dims]
        A = meta.permute_dims(A, (*[d for d in range(A.ndim) if d not in moved], *moved))
    found = A.shape[B.ndim :]
    matrix = meta.reshape(A, (B.size, math.prod(found)))
    return meta.reshape(meta.linalg_solve(matrix, meta.reshape(B, (-1,))), found)


def cond(A: Any, p: Any = None) -> Any:
    """The condition number of matrices."""
    if p in (None, 2, -2):
        s = meta.linalg_svdvals(A)
        largest, smallest = meta.max(s, -1), meta.min(s, -1)
        return smallest / largest if p == -2 else largest / smallest
    return linalg.matrix_norm(A, ord=p) * linalg.matrix_norm(meta.linalg_inv(A), ord=p)


def permutation(pivots: Any, rows: int) -> Any:
    """Return the matrices of permutations that successive exchanges of rows make."""
    given = pivots.numpy()
    order = np.broadcast_to(np.arange(rows), (*given.shape[:-1], rows)).copy()
    for batch in np.ndindex(*given.shape[:-1]):
        for i, j in enumerate(given[batch] - 1):
            order[(*batch, [i, j])] = order[(*batch, [j, i])]
    unit = np.eye(rows)
    return np.swapaxes(unit[order], -1, -2)


def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    """The three matrices from what LAPACK returns."""
    m, n = LU_data.shape[-2:]
    k, dtype = min(m, n), LU_data.dtype
    nothing = meta.zeros((0,), dtype)
    p = meta.array(permutation(LU_pivots, m), dtype) if unpack_pivots else nothing
    if not unpack_data:
        return p, nothing, nothing
    lower = meta.tril(LU_data[..., :k], -1) + meta.eye(m, k, dtype=dtype)
    return p, lower, meta.triu(LU_data[..., :k, :])


def lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """Solve a system whose matrix was decomposed."""
    if not left:
        turned = lu_solve(LU, pivots, swapped(B), left=True, adjoint=not adjoint)
        return swapped(turned)
    p = meta.array(permutation(pivots, LU.shape[-1]), LU.dtype)
    if adjoint:
        y = meta.linalg_solve_triangular(swapped(LU), B, False)
        return p @ meta.linalg_solve_triangular(swapped(LU), y, True, True)
    y = meta.linalg_solve_triangular(LU, swapped(p) @ B, False, True)
    return meta.linalg_solve_triangular(LU, y, True)


swapped = adjoint


def matrix_exp(A: Any) -> Any:
    """The exponential of matrices: of A / 2**k by its series, squared k times."""
    x = meta.astype(A, "float32") if A.dtype == "bfloat16" else A
    largest = float(meta.max(meta.sum(meta.abs(x), -1))) if x.size else 0.0
    halvings = max(math.ceil(math.log2(max(largest, 1e-9))) + 1, 0)
    x = x * 0.5**halvings
    unit = meta.eye(x.shape[-1], dtype=x.dtype) if x.ndim else x
    y = meta.broadcast_to(unit, x.shape)
    for n in range(18, 0, -1):
        y = unit + (x @ y) / n
    for _ in range(halvings):
        y = y @ y
    return meta.astype(y, A.dtype) if A.dtype == "bfloat16" else y


def householder_product(A: Any, tau: Any) -> Any:
    """The first columns of a product of reflections, whose vectors are below the diagonal."""
    m, n = A.shape[-2:]
    unit = meta.eye(m, n, dtype=A.dtype)
    y = meta.broadcast_to(unit, A.shape)
    vectors = meta.tril(A, -1) + unit
    for i in range(tau.shape[-1] - 1, -1, -1):
        v = vectors[..., i : i + 1]
        y = y - meta.expand_dims(tau[..., i : i + 1], -1) * v @ (adjoint(v) @ y)
    return y


ADAPTERS = {
    "cholesky": cholesky,
    "cholesky_inverse": cholesky_inverse,
    "cholesky_solve": cholesky_solve,
    "linalg.cholesky": lambda A, *, upper=False: meta.linalg_cholesky(A, upper),
    "linalg.cholesky_ex": checked(lambda A, *, upper=False: meta.linalg_cholesky(A, upper)),
    "linalg.cond": cond,
    "linalg.det": meta.linalg_det,
    "linalg.eigh": lambda A, UPLO="L": meta.linalg_eigh(symmetric(A, UPLO == "L")),
    "linalg.eigvalsh": lambda A, UPLO="L": meta.linalg_eigvalsh(symmetric(A, UPLO == "L")),
    "linalg.householder_product": householder_product,
    "linalg.inv": meta.linalg_inv,
    "linalg.inv_ex": checked(meta.linalg_inv),
    "linalg.lstsq": lstsq,
    "linalg.lstsq|grad_oriented": lambda A, B, *, driver=None: lstsq(A, B, driver=driver)[:2],
    "linalg.lu_solve": lu_solve,
    "linalg.matrix_rank": matrix_rank,
    "linalg.matrix_rank|hermitian": matrix_rank,
    "linalg.pinv": pinv,
    "linalg.pinv|hermitian": pinv,
    "linalg.pinv|singular": pinv_of_product,
    "linalg.qr": linalg_qr,
    "linalg.slogdet": meta.linalg_slogdet,
    "linalg.solve": solve,
    "linalg.solve_ex": checked(solve),
    "linalg.solve_triangular": solve_triangular,
    "linalg.svd": linalg_svd,
    "linalg.svdvals": lambda A, *, driver=None: meta.linalg_svdvals(A),
    "linalg.tensorinv": tensorinv,
    "linalg.tensorsolve": tensorsolve,
    "logdet": logdet,
    "lu_solve": lambda b, LU_data, LU_pivots: lu_solve(LU_data, LU_pivots, b),
    "lu_unpack": lu_unpack,
    "matrix_exp": matrix_exp,
    "norm|nuc": lambda input, p="nuc", dim=(-2, -1), keepdim=False: matrix_norm(
        input, p, dim, keepdim
    ),
    "pca_lowrank": low_rank,
    "pinverse": lambda input, rcond=1e-15: pinv(input, rcond),
    "qr": qr,
    "svd": svd,
    "svd_lowrank": low_rank,
    "triangular_solve": triangular_solve,
}
