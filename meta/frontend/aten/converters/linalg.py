"""Linear systems, determinants, inverses, decompositions and norms of matrices.

Where torch gives a matrix for which there is no result a number of its own (``info``), a program
here raises LinAlgError when it runs, so that ``info`` is 0.
"""

from functools import reduce as folded

from meta import linalg, op
from meta.frontend.aten.arguments import promote
from meta.frontend.aten.converters.reduce import NORM, axes_of, in_dtype, norm
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import static_extent
from meta.op.core.check import normalize_axis


def adjoint(x):
    """Return the conjugate transpose of matrices."""
    turned = op.swapaxes(x, -1, -2)
    return op.conj(turned) if "complex" in x.dtype else turned


def transposed(x):
    return op.swapaxes(x, -1, -2)


def information(x):
    """Return what says of each matrix that nothing went wrong."""
    return op.zeros(x.shape[:-2], "int32")


# Triangles.


@aten("linalg_cholesky_ex", op.linalg_cholesky, ignore=("check_errors",))
def cholesky_ex(x, *, upper):
    return op.linalg_cholesky(x, upper), information(x)


aten.same("cholesky", op.linalg_cholesky)
aten.same("linalg_cholesky", op.linalg_cholesky)


@aten("cholesky_solve", "_cholesky_solve_helper", op.linalg_solve_triangular, op.swapaxes)
def cholesky_solve(x, triangle, *, upper):
    first, second = (adjoint(triangle), triangle) if upper else (triangle, adjoint(triangle))
    return op.linalg_solve_triangular(second, op.linalg_solve_triangular(first, x, False), True)


@aten("cholesky_inverse", op.eye, op.linalg_solve_triangular)
def cholesky_inverse(x, *, upper):
    unit = op.eye(static_extent(x.shape[-1], "a triangle"), dtype=x.dtype)
    return cholesky_solve(op.broadcast_to(unit, x.shape), x, upper=upper)


@aten("linalg_solve_triangular", op.linalg_solve_triangular, op.swapaxes)
def solve_triangular(x, b, *, upper, left, unitriangular):
    if left:
        return op.linalg_solve_triangular(x, b, upper, unitriangular)
    found = op.linalg_solve_triangular(transposed(x), transposed(b), not upper, unitriangular)
    return transposed(found)


@aten("triangular_solve", op.linalg_solve_triangular, op.swapaxes, op.broadcast_to)
def triangular_solve(b, x, *, upper, transpose, unitriangular):
    """The older form, which also gives a copy of the matrix."""
    matrix = transposed(x) if transpose else x
    y = op.linalg_solve_triangular(matrix, b, upper != transpose, unitriangular)
    return y, op.broadcast_to(x, (*y.shape[:-2], *x.shape[-2:]))


# Linear systems, inverses and determinants.


@aten("linalg_inv_ex", op.linalg_inv, ignore=("check_errors",))
def inv_ex(x):
    return op.linalg_inv(x), information(x)


aten.same("linalg_inv", op.linalg_inv)
aten.same("inverse", op.linalg_inv)


def are_vectors(x, b):
    """Whether a right side is a batch of vectors, which torch tells by its shape."""
    return b.ndim == 1 or (x.ndim - 1 == b.ndim and b.shape == x.shape[:-1])


def solved(x, b, left):
    vectors = are_vectors(x, b)
    columns = op.expand_dims(b, -1) if vectors else b
    if not left and not vectors:
        return transposed(op.linalg_solve(transposed(x), transposed(columns)))
    found = op.linalg_solve(x, columns)
    return op.squeeze(found, -1) if vectors else found


SOLVE = (op.linalg_solve, op.swapaxes, op.expand_dims, op.squeeze)


@aten("_linalg_solve_ex", op.linalg_lu_factor, *SOLVE, ignore=("check_errors",))
def solve_with_factors(x, b, *, left):
    """The solution, and the decomposition, which its gradient takes."""
    return solved(x, b, left), *op.linalg_lu_factor(x), information(x)


@aten("linalg_solve_ex", *SOLVE, ignore=("check_errors",))
def solve_ex(x, b, *, left):
    return solved(x, b, left), information(x)


@aten("linalg_solve", *SOLVE)
def solve(x, b, *, left):
    return solved(x, b, left)


def factors_of_determinant(x):
    """Return the decomposition that torch gives beside a determinant: of a real matrix that lies
    in memory by rows, which others are not converted, that of the transposed one.
    """
    return op.linalg_lu_factor(x if "complex" in x.dtype else transposed(x))


@aten("_linalg_det", op.linalg_det, op.linalg_lu_factor, op.swapaxes)
def det_with_factors(x):
    return op.linalg_det(x), *factors_of_determinant(x)


aten.same("linalg_det", op.linalg_det)
aten.same("det", op.linalg_det)


@aten("_linalg_slogdet", op.linalg_slogdet, op.linalg_lu_factor, op.swapaxes)
def slogdet_with_factors(x):
    return *op.linalg_slogdet(x), *factors_of_determinant(x)


aten.same("linalg_slogdet", op.linalg_slogdet)
aten.same("slogdet", op.linalg_slogdet)


def with_pivots(pivot):
    if not pivot:
        raise Unconvertible("a decomposition without exchanges of rows is not converted")


@aten("linalg_lu_factor_ex", op.linalg_lu_factor, ignore=("check_errors",))
def lu_factor_ex(x, *, pivot):
    with_pivots(pivot)
    return *op.linalg_lu_factor(x), information(x)


@aten("linalg_lu_factor", op.linalg_lu_factor)
def lu_factor(x, *, pivot):
    with_pivots(pivot)
    return op.linalg_lu_factor(x)


@aten("linalg_lu_solve", op.linalg_lu_solve, op.swapaxes)
def lu_solve(lu, pivots, b, *, left, adjoint):
    if left:
        return op.linalg_lu_solve(lu, pivots, b, adjoint)
    turned = op.conj(transposed(b)) if "complex" in b.dtype else transposed(b)
    found = op.linalg_lu_solve(lu, pivots, turned, not adjoint)
    found = transposed(found)
    return op.conj(found) if "complex" in b.dtype else found


def triangles(lu):
    """Return both triangles of a packed decomposition."""
    rows, columns = (static_extent(d, "a packed matrix") for d in lu.shape[-2:])
    k = min(rows, columns)
    left = op.split(lu, (k,), -1)[0] if k < columns else lu
    above = op.split(lu, (k,), -2)[0] if k < rows else lu
    return op.add(op.tril(left, -1), op.eye(rows, k, dtype=lu.dtype)), op.triu(above)


def permutation(pivots, rows, dtype):
    """Return the matrices p with ``x = p @ l @ u``, by the exchanges one after the other."""
    order = op.cumsum.plain(op.ones((*pivots.shape[:-1], rows), "int64"), -1, "int64", True)
    for i in range(static_extent(pivots.shape[-1], "the exchanges of rows")):
        mine = op.strided_slice(order, *_column(order, i), None)
        place = op.subtract(
            op.astype(op.strided_slice(pivots, *_column(pivots, i), None), "int64"), 1
        )
        theirs = op.take_along_axis(order, place, -1)
        here = op.add(op.zeros_like(place), i)
        order = op.scatter.plain(order, -1, place, mine)
        order = op.scatter.plain(order, -1, here, theirs)
    unit = op.one_hot(order, rows, 1, 0, -1, "int64")
    return op.astype(transposed(unit), dtype)


def _column(x, i):
    """Return where a slice of the last axis begins and ends."""
    return (*(0,) * (x.ndim - 1), i), (*x.shape[:-1], i + 1)


LU = (op.tril, op.triu, op.eye, op.scatter, op.take_along_axis, op.one_hot)


@aten("lu_unpack", *LU)
def lu_unpack(lu, pivots, *, unpack_data, unpack_pivots):
    nothing = op.zeros((0,), lu.dtype)
    rows = static_extent(lu.shape[-2], "a packed matrix")
    p = permutation(pivots, rows, lu.dtype) if unpack_pivots else nothing
    lower, upper = triangles(lu) if unpack_data else (nothing, nothing)
    return p, lower, upper


@aten("linalg_lu", op.linalg_lu_factor, *LU)
def lu(x, *, pivot):
    with_pivots(pivot)
    packed, pivots = op.linalg_lu_factor(x)
    return lu_unpack(packed, pivots, unpack_data=True, unpack_pivots=True)


# Orthogonal matrices, singular values and eigenvalues.


@aten("linalg_qr", op.linalg_qr)
def qr(x, *, mode):
    if mode == "r":
        return op.zeros((0,), x.dtype), op.linalg_qr(x)[1]
    return op.linalg_qr(x, mode)


@aten("_linalg_svd", op.linalg_svd, op.linalg_svdvals, ignore=("driver",))
def svd_of_kernel(x, *, full_matrices, compute_uv):
    if compute_uv:
        return op.linalg_svd(x, full_matrices)
    nothing = op.zeros((0,), x.dtype)
    return nothing, op.linalg_svdvals(x), nothing


aten.same("linalg_svd", op.linalg_svd, ignore=("driver",))
aten.same("linalg_svdvals", op.linalg_svdvals, ignore=("driver",))


def lower(x, triangle):
    """Return symmetric matrices of which the lower triangle is to be read."""
    return x if triangle.upper() == "L" else adjoint(x)


@aten("_linalg_eigh", op.linalg_eigh, op.linalg_eigvalsh)
def eigh_of_kernel(x, *, UPLO, compute_v):
    x = lower(x, UPLO)
    return op.linalg_eigh(x) if compute_v else (op.linalg_eigvalsh(x), op.zeros((0,), x.dtype))


@aten("linalg_eigh", op.linalg_eigh)
def eigh(x, *, UPLO):
    return op.linalg_eigh(lower(x, UPLO))


@aten("linalg_eigvalsh", op.linalg_eigvalsh)
def eigvalsh(x, *, UPLO):
    return op.linalg_eigvalsh(lower(x, UPLO))


aten.same("linalg_eig", op.linalg_eig)
aten.same("linalg_eigvals", op.linalg_eigvals)
aten.same("_linalg_eigvals", op.linalg_eigvals)
LARGEST_PRODUCT = 64
"""Reflections that are multiplied one after the other."""


@aten("linalg_householder_product", "orgqr", op.matmul, op.tril, op.eye)
def householder_product(x, tau):
    """The first columns of a product of reflections, whose vectors are below the diagonal."""
    rows, columns = (static_extent(d, "a matrix of reflections") for d in x.shape[-2:])
    count = static_extent(tau.shape[-1], "the reflections")
    if count > LARGEST_PRODUCT:
        raise Unconvertible(f"more than {LARGEST_PRODUCT} reflections are not unrolled")
    unit = op.eye(rows, columns, dtype=x.dtype)
    vectors, y = op.add(op.tril(x, -1), unit), op.broadcast_to(unit, x.shape)
    for i in reversed(range(count)):
        v = op.strided_slice(vectors, *_column(vectors, i), None)
        factor = op.expand_dims(op.strided_slice(tau, *_column(tau, i), None), -1)
        y = op.subtract(y, op.multiply(factor, op.matmul(v, op.matmul(adjoint(v), y))))
    return y


@aten("linalg_matrix_exp", "matrix_exp", op.linalg_matrix_exp)
def matrix_exp(x):
    if x.dtype in ("float16", "bfloat16"):
        raise Unconvertible("of half precision it overflows in torch", hint="float32")
    return op.linalg_matrix_exp(x)


@aten("linalg_cross", op.multiply, op.subtract, op.roll)
def cross(x, y, *, dim):
    x, y = promote(x, y)

    def turned(t, steps):
        return op.roll(t, -steps, dim)

    # An axis of extent 3 is not broadcast, others are.
    ahead = op.multiply(turned(x, 1), turned(y, 2))
    return op.subtract(ahead, op.multiply(turned(x, 2), turned(y, 1)))


@aten("linalg_pinv.atol_rtol_float", op.linalg_pinv)
def pinv_of_numbers(x, *, atol, rtol, hermitian):
    return op.linalg_pinv(x, rtol, atol or 0.0, hermitian)


@aten("linalg_pinv", op.linalg_pinv)
def pinv_of_condition(x, *, rcond, hermitian):
    return op.linalg_pinv(x, rcond, 0.0, hermitian)


@aten("pinverse", op.linalg_pinv)
def pinverse(x, *, rcond):
    return op.linalg_pinv(x, rcond)


PINV = (op.linalg_pinv, op.linalg_svd, op.linalg_eigh, op.where, op.matmul)


@aten("linalg_pinv.atol_rtol_tensor", *PINV)
def pinv(x, absolute=None, relative=None, *, hermitian):
    """The inverse by singular values, or eigenvalues, that are above a bound, as torch takes it."""
    bounds = [constant_value(b) for b in (relative, absolute) if b is not None]
    # Compiled for torch.compile, the operator gives other numbers of complex matrices.
    if "complex" not in x.dtype and all(b is not None and b.ndim == 0 for b in bounds):
        rtol, atol = (None if b is None else b.item() for b in (relative, absolute))
        return op.linalg_pinv(x, rtol, atol or 0.0, hermitian)
    rows, columns = (static_extent(d, "a matrix") for d in x.shape[-2:])
    if 0 in (rows, columns):
        return op.linalg_pinv(x)
    if hermitian:
        s, left = op.linalg_eigh(x)
        right, size = left, op.abs(s)
    else:
        left, s, vh = op.linalg_svd(x, False)
        right, size = adjoint(vh), s
    least = max(rows, columns) * (2.0**-52 if s.dtype == "float64" else 2.0**-23)
    absolute = op.zeros((), s.dtype) if absolute is None else op.astype(absolute, s.dtype)
    if relative is None:
        relative = op.where(op.greater(absolute, 0.0), 0.0, op.full_like(absolute, least))
    bound = op.multiply(op.astype(relative, s.dtype), op.max(size, -1))
    kept = op.greater(size, op.expand_dims(op.maximum(absolute, bound), -1))
    inverse = op.where(kept, op.divide(1.0, op.where(kept, s, 1.0)), 0.0)
    scaled = op.multiply(op.astype(op.expand_dims(inverse, -1), x.dtype), adjoint(left))
    return op.matmul(right, scaled)


aten.refuse(
    *("geqrf", "ormqr", "linalg_ldl_factor_ex", "linalg_ldl_solve", "_lu_with_info"),
    why="the packed form in which LAPACK leaves a decomposition is not made",
)
aten.refuse("linalg_lstsq", why="which of its results are empty depends on the driver of LAPACK")


# Norms of matrices, and what torch composes of decompositions and products, kept whole.


def matrix_norm(x, ord, dim, keepdim, dtype):
    """Return the norm of the matrices that two axes make."""
    x = in_dtype(x, dtype)
    rows, columns = (normalize_axis(d, x.ndim) for d in dim)
    others = tuple(i for i in range(x.ndim) if i not in (rows, columns))
    found = linalg.matrix_norm(op.permute_dims(x, (*others, rows, columns)), ord=ord)
    for axis in sorted((rows, columns)) if keepdim else ():
        found = op.expand_dims(found, axis)
    return found


MATRIX_NORM = (*NORM, op.linalg_svdvals, op.permute_dims)


@aten("linalg_matrix_norm", *MATRIX_NORM)
def matrix_norm_of_number(x, ord, *, dim, keepdim, dtype):
    return matrix_norm(x, ord, dim, keepdim, dtype)


@aten("linalg_matrix_norm.str_ord", *MATRIX_NORM)
def matrix_norm_of_name(x, *, ord, dim, keepdim, dtype):
    return matrix_norm(x, ord, dim, keepdim, dtype)


@aten("linalg_norm", "linalg_norm.ord_str", *MATRIX_NORM)
def norm_of_any(x, *, ord, dim, keepdim, dtype):
    """Of vectors along one axis, of matrices along two; without either, of all elements."""
    axes = tuple(range(x.ndim)) if dim is None else dim
    if len(axes) == 2 and ord is not None:
        return matrix_norm(x, ord, axes, keepdim, dtype)
    return norm(x, ord, axes_of(x, dim), keepdim, dtype)


@aten("nuclear_norm", *MATRIX_NORM)
def nuclear_norm(x, *, keepdim):
    return matrix_norm(x, "nuc", (0, 1), keepdim, None)


@aten("nuclear_norm.dim", *MATRIX_NORM)
def nuclear_norm_along(x, *, dim, keepdim):
    return matrix_norm(x, "nuc", dim, keepdim, None)


@aten("logdet", op.linalg_slogdet, op.log, op.add)
def logdet(x):
    """log(det), NaN of a negative one."""
    sign, size = op.linalg_slogdet(x)
    return op.add(op.log(sign), size)


@aten("svd", op.linalg_svd, op.linalg_svdvals)
def svd(x, *, some, compute_uv):
    """The older form: right vectors in columns."""
    if compute_uv:
        u, s, vh = op.linalg_svd(x, not some)
        return u, s, adjoint(vh)
    *batch, rows, columns = x.shape
    u, v = (op.zeros((*batch, k, k), x.dtype) for k in (rows, columns))
    return u, op.linalg_svdvals(x), v


@aten("qr", op.linalg_qr)
def older_qr(x, *, some):
    return op.linalg_qr(x, "reduced" if some else "complete")


@aten("linalg_vecdot", op.conj, op.multiply, op.sum)
def vecdot(x, y, *, dim):
    x, y = promote(x, y)
    product = op.multiply(op.conj(x) if "complex" in x.dtype else x, y)
    found = op.sum(product, dim)
    return found if found.dtype == product.dtype else op.astype(found, product.dtype)


@aten("linalg_multi_dot", op.matmul)
def multi_dot(tensors):
    return folded(op.matmul, tensors)


@aten("linalg_matrix_power", "matrix_power", op.matmul, op.linalg_inv)
def matrix_power(x, *, n):
    return linalg.matrix_power(x, n)
