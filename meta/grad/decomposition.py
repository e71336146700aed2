"""Gradients of linear systems, determinants and decompositions.

The formulas are in Giles, "An extended collection of matrix derivative results for forward and
reverse mode algorithmic differentiation", 2008, unless a rule names another source. Unlike there,
matrices are in the last two axes; ``a.T`` in a formula exchanges these.
"""

from typing import Any

from meta import op
from meta.base.dtype import COMPLEX
from meta.base.errors import GradientError
from meta.grad.core import collapse, gradient, holomorphic, not_differentiable
from meta.ir.types import TensorType


def _t(x: Any) -> Any:
    return op.swapaxes(x, -1, -2)


def _adjoint(x: Any) -> Any:
    return op.conj(_t(x)) if x.dtype in COMPLEX else _t(x)


def _row(x: Any) -> Any:
    """Return vectors as rows, which scale the columns of a matrix."""
    return op.expand_dims(x, -2)


def _column(x: Any) -> Any:
    return op.expand_dims(x, -1)


def _as_matrices(x: Any) -> Any:
    """Return numbers as matrices of one element."""
    return op.expand_dims(x, -1, 2)


def _ratio(x: Any, by: Any) -> Any:
    """Return x / by, and 0 where both are 0: nothing depends on vectors that are not determined."""
    by = op.broadcast_to(by, x.shape)
    return x / op.where(by == 0, op.astype(x == 0, x.dtype), by)


def _diagonal(x: Any) -> Any:
    """Return matrices with vectors on the diagonal."""
    return op.diagonal_dx(x, (*x.shape, x.shape[-1]), 0, -2, -1)


def _require_real(x: Any, of: Any) -> None:
    """Raise GradientError for a complex matrix, of which the rules here are not."""
    if x.dtype in COMPLEX:
        raise GradientError(
            "this function has a gradient of real matrices only",
            op=of.name,
            found=x.dtype,
            hint="differentiate inv, solve or det, which have one of complex matrices, too",
        )


@gradient(op.linalg_inv)
@holomorphic
def linalg_inv(y, dy):
    """dx = -y.T dy y.T"""
    return -(_t(y) @ dy @ _t(y))


@gradient(op.linalg_pinv)
def linalg_pinv(x, y, dy):
    """dx = -y.H dy y.H + (1 - x y) dy.H y y.H + y.H y dy.H (1 - y x)

    Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems
    whose variables separate", 1973, (4.12), transposed; a.H is the adjoint.
    """
    back, over = _adjoint(dy), _adjoint(y)
    left, right = back @ y @ over, over @ y @ back
    return left - x @ (y @ left) + right - right @ y @ x - over @ dy @ over


@gradient(op.linalg_solve)
@holomorphic
def linalg_solve(x1, x2: TensorType, y, dy):
    """dx2 = x1.T^-1 dy; dx1 = -dx2 y.T"""
    if x2.ndim > 1:
        dx2 = op.linalg_solve(_t(x1), dy)
        return collapse(-(dx2 @ _t(y)), x1), collapse(dx2, x2)
    column = op.linalg_solve(_t(x1), _column(dy))
    return -(column @ _row(y)), collapse(op.squeeze(column, -1), x2)


@gradient(op.linalg_solve_triangular)
@holomorphic
def linalg_solve_triangular(x1, x2: TensorType, upper, unitriangular, y, dy):
    """dx2 = x1.T^-1 dy; dx1 = -dx2 y.T in the triangle that is read."""
    dx2 = op.linalg_solve_triangular(_t(x1), dy, not upper, unitriangular)
    whole = collapse(-(dx2 @ _t(y)), x1)
    read = op.triu(whole, int(unitriangular)) if upper else op.tril(whole, -int(unitriangular))
    return read, collapse(dx2, x2)


@gradient(op.linalg_det)
@holomorphic
def linalg_det(x, dy):
    """dx = dy cofactor(x), Jacobi's formula."""
    return _as_matrices(dy) * op.linalg_cofactor(x)


@gradient(op.linalg_cofactor)
@holomorphic
def linalg_cofactor(x, y, dy):
    """dx = sum(z * dy) y - det(x) z dy.T z with z = x.T^-1, from y = det(x) z."""
    z = op.linalg_inv(_t(x))
    inner = op.sum(z * dy, (-2, -1), True)
    return inner * y - _as_matrices(op.linalg_det(x)) * (z @ _t(dy) @ z)


@gradient(op.linalg_slogdet)
def linalg_slogdet(x, dy):
    """dx = dlogabsdet x.T^-1; the sign is piecewise constant."""
    _require_real(x, op.linalg_slogdet)
    return _as_matrices(dy[1]) * op.linalg_inv(_t(x))


@gradient(op.linalg_cholesky)
def linalg_cholesky(upper, y, dy):
    """dx = l.T^-1 p l^-1, made symmetric, with p = tril(l.T dl), the diagonal halved.

    Murray, "Differentiation of the Cholesky decomposition", 2016, (10).
    """
    _require_real(y, op.linalg_cholesky)
    transposed, dl = (y, _t(dy)) if upper else (_t(y), dy)
    product = transposed @ dl
    p = (op.tril(product) + op.tril(product, -1)) * 0.5
    half = op.linalg_solve_triangular(transposed, p, True)
    dx = op.linalg_solve_triangular(transposed, _t(half), True)
    return (dx + _t(dx)) * 0.5


def _is_tall(x: TensorType) -> bool:
    """Whether a matrix has more rows than columns; TypeInferError if that is not known."""
    m, n = x.shape[-2:]
    if m == n:
        return False
    rows, columns = x.with_shape((m, n)).static_shape
    return rows > columns


@gradient(op.linalg_qr)
def linalg_qr(x: TensorType, mode, y, dy):
    """Of a wide matrix [a, b] = q [u, v] the columns b are q v, whose gradient adds q dv to db and
    b dv.T to dq; what remains is the decomposition of a square matrix. See `_of_tall_qr`.
    """
    _require_real(y[0], op.linalg_qr)
    (q, r), (dq, dr) = y, dy
    m, n = x.shape[-2:]
    tall = _is_tall(x)
    if m == n or (tall and mode == "reduced"):
        return _of_tall_qr(q, r, dq, dr)
    if tall:
        raise GradientError(
            "the columns of q that complete a basis have no gradient",
            op=op.linalg_qr.name,
            hint='use mode="reduced"',
        )
    v, dv = r[..., m:], dr[..., m:]
    square = _of_tall_qr(q, r[..., :m], dq + q @ v @ _t(dv), dr[..., :m])
    return op.concat((square, q @ dv), -1)


def _of_tall_qr(q: Any, r: Any, dq: Any, dr: Any) -> Any:
    """Return (dq + q s) r.T^-1; s is symmetric with the upper triangle of dr r.T - q.T dq.

    Walter and Lehmann, "Algorithmic differentiation of linear algebra functions with application
    in optimum experimental design", 2010.
    """
    triangle = op.triu(dr @ _t(r) - _t(q) @ dq)
    whole = dq + q @ (triangle + _t(op.triu(triangle, 1)))
    return _t(op.linalg_solve_triangular(r, _t(whole), True))


@gradient(op.linalg_svd)
def linalg_svd(x: TensorType, full_matrices, y, dy):
    """dx = u ((skew(u.T du) / e) s + s (skew(v.T dv) / e) + ds) vh with skew(a) = a - a.T and
    e[i, j] = s[j]² - s[i]²; and what of du and dv is orthogonal to u and v, divided by s.

    Townsend, "Differentiating the singular value decomposition", 2016.
    """
    _require_real(y[0], op.linalg_svd)
    (u, s, vh), (du, ds, dvh) = y, dy
    m, n = x.shape[-2:]
    if full_matrices and m != n:
        raise GradientError(
            "the singular vectors that complete a basis have no gradient",
            op=op.linalg_svd.name,
            hint="use full_matrices=False, or meta.linalg.svdvals for the singular values",
        )
    row, column = _row(s), _column(s)
    e = (row - column) * (row + column)
    turn_u, turn_v = _t(u) @ du, vh @ _t(dvh)
    inner = _ratio(turn_u - _t(turn_u), e) * row + column * _ratio(turn_v - _t(turn_v), e)
    dx = u @ (inner + _diagonal(ds)) @ vh
    if _is_tall(x):
        dx = dx + _ratio(du - u @ turn_u, row) @ vh
    elif m != n:
        dx = dx + u @ _ratio(dvh - _t(turn_v) @ vh, column)
    return dx


@gradient(op.linalg_svdvals)
def linalg_svdvals(x, dy):
    """dx = u dy vh"""
    _require_real(x, op.linalg_svdvals)
    u, _, vh = op.linalg_svd(x, False)
    return u * _row(dy) @ vh


@gradient(op.linalg_eigh)
def linalg_eigh(y, dy):
    """dx = v (dw + (v.T dv) / e) v.T, made symmetric, with e[i, j] = w[j] - w[i]."""
    _require_real(y[1], op.linalg_eigh)
    (w, v), (dw, dv) = y, dy
    turn = _t(v) @ dv
    apart = op.triu(turn, 1) + op.tril(turn, -1)
    dx = v @ (_ratio(apart, _row(w) - _column(w)) + _diagonal(dw)) @ _t(v)
    return (dx + _t(dx)) * 0.5


@gradient(op.linalg_eigvalsh)
def linalg_eigvalsh(x, dy):
    """dx = v dy v.T"""
    _require_real(x, op.linalg_eigvalsh)
    _, v = op.linalg_eigh(x)
    return v * _row(dy) @ _t(v)


not_differentiable(
    op.linalg_lu_factor,
    op.linalg_lu_solve,
    why="solve and det have one, of the matrix itself",
    missing=True,
)
not_differentiable(op.linalg_eig, op.linalg_eigvals, why="eigh and eigvalsh have one", missing=True)


@gradient(op.linalg_matrix_exp)
@holomorphic
def linalg_matrix_exp(x, dy):
    """dx = the upper right block of exp [[x.T, dy], [0, x.T]].

    Mathias, "A chain rule for matrix functions and applications", 1996, theorem 2.1.
    """
    n, turned = x.shape[-1], _t(x)
    above = op.concat((turned, dy), -1)
    below = op.concat((op.zeros_like(turned), turned), -1)
    whole = op.linalg_matrix_exp(op.concat((above, below), -2))
    upper = op.split(whole, (n,), -2)[0]
    return op.split(upper, (n,), -1)[1]
