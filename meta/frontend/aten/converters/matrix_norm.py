"""Norms of matrices, and what torch composes of decompositions and products, kept whole."""

from functools import reduce as folded

from meta import linalg, op
from meta.frontend.aten.converters.linalg import adjoint
from meta.frontend.aten.converters.reduce import NORM, axes_of, in_dtype, norm
from meta.frontend.aten.promotion import promote
from meta.frontend.aten.registry import aten
from meta.op.core.check import normalize_axis


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
def qr(x, *, some):
    return op.linalg_qr(x, "reduced" if some else "complete")


@aten("linalg_vecdot", op.conj, op.multiply, op.sum)
def vecdot(x, y, *, dim):
    x, y = promote(x, y)
    product = op.multiply(op.conj(x) if "complex" in x.dtype else x, y)
    found = op.sum(product, dim)
    return found if found.dtype == product.dtype else op.astype(found, product.dtype)


@aten("linalg_matmul", op.matmul)
def matmul(x, y):
    return op.matmul(x, y)


@aten("linalg_multi_dot", op.matmul)
def multi_dot(tensors):
    return folded(op.matmul, tensors)


@aten("linalg_matrix_power", "matrix_power", op.matmul, op.linalg_inv)
def matrix_power(x, *, n):
    return linalg.matrix_power(x, n)
