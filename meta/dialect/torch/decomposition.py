"""Linear systems, determinants and decompositions on ATen, which calls LAPACK, cuSOLVER or MAGMA.

A matrix for which there is no result is found while the kernel runs, so the host waits for a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from meta import op
from meta.base.errors import LinAlgError
from meta.dialect.core import LIBRARY
from meta.dialect.core.backend_errors import summary
from meta.dialect.torch import torch as dialect
from meta.op.core.op import Op


def _kernel(base):
    reason = "the host reads whether there is a result"
    return dialect.kernel(base, plevel=LIBRARY, not_capturable=reason)


@contextmanager
def _failing(base: Op, what: str, hint: str) -> Iterator[None]:
    """Let torch's error about a matrix be a LinAlgError."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # not in its stubs
        raise LinAlgError(what, op=base.name, found=summary(error), hint=hint) from error


def _singular(base):
    hint = "meta.linalg.pinv or lstsq, or add a small multiple of the identity"
    return _failing(base, "a matrix is singular", hint)


def _not_converging(base):
    hint = "look for NaN and infinity in the matrix: META_DEBUG_NANS=inf names where they come from"
    return _failing(base, "a decomposition does not converge", hint)


def _compact(*tensors):
    return tuple(t.resolve_conj().contiguous() for t in tensors)


@_kernel(op.linalg_inv)
def inv(x):
    with _singular(op.linalg_inv):
        return torch.linalg.inv(x).contiguous()


@_kernel(op.linalg_pinv)
def pinv(x, rtol, atol, hermitian):
    with _not_converging(op.linalg_pinv):
        found = torch.linalg.pinv(x, atol=atol or None, rtol=rtol, hermitian=hermitian)
    return found.resolve_conj().contiguous()


@_kernel(op.linalg_solve)
def solve(x1, x2):
    columns = x2.unsqueeze(-1) if x2.ndim == 1 else x2
    # torch takes a second argument without as many axes for a batch of vectors.
    batch = torch.broadcast_shapes(x1.shape[:-2], columns.shape[:-2])
    x1, columns = (x.expand(*batch, *x.shape[-2:]) for x in (x1, columns))
    with _singular(op.linalg_solve):
        found = torch.linalg.solve(x1, columns)
    return (found.squeeze(-1) if x2.ndim == 1 else found).contiguous()


@_kernel(op.linalg_solve_triangular)
def solve_triangular(x1, x2, upper, unitriangular):
    if not unitriangular and bool((x1.diagonal(dim1=-2, dim2=-1) == 0).any()):
        raise LinAlgError(
            "a triangular matrix is singular",
            op=op.linalg_solve_triangular.name,
            found="a zero on the diagonal",
            hint="unitriangular=True takes the diagonal for ones",
        )
    found = torch.linalg.solve_triangular(x1, x2, upper=upper, unitriangular=unitriangular)
    return found.contiguous()


@_kernel(op.linalg_det)
def det(x):
    return torch.linalg.det(x).contiguous()


@_kernel(op.linalg_cofactor)
def cofactor(x):
    with _not_converging(op.linalg_cofactor):
        u, s, vh = torch.linalg.svd(x)
    # For each singular value the product of those before and behind it.
    ones = s.new_ones(*s.shape[:-1], 1)
    before = torch.cat([ones, s], -1).cumprod(-1)[..., :-1]
    behind = torch.cat([ones, s.flip(-1)], -1).cumprod(-1)[..., :-1].flip(-1)
    sign = torch.linalg.det(u) * torch.linalg.det(vh)
    others = sign.unsqueeze(-1) * before * behind
    return (u.conj() * others.unsqueeze(-2) @ vh.conj()).resolve_conj().contiguous()


@_kernel(op.linalg_slogdet)
def slogdet(x):
    return _compact(*torch.linalg.slogdet(x))


@_kernel(op.linalg_cholesky)
def cholesky(x, upper):
    hint = "a covariance is made so by adding a small multiple of the identity"
    with _failing(op.linalg_cholesky, "a matrix is not positive definite", hint):
        found = torch.linalg.cholesky(x)
    return (found.mH if upper else found).resolve_conj().contiguous()


@_kernel(op.linalg_qr)
def qr(x, mode):
    return _compact(*torch.linalg.qr(x, mode))


@_kernel(op.linalg_svd)
def svd(x, full_matrices):
    with _not_converging(op.linalg_svd):
        return _compact(*torch.linalg.svd(x, full_matrices))


@_kernel(op.linalg_svdvals)
def svdvals(x):
    with _not_converging(op.linalg_svdvals):
        return torch.linalg.svdvals(x).contiguous()


@_kernel(op.linalg_eigh)
def eigh(x):
    with _not_converging(op.linalg_eigh):
        return _compact(*torch.linalg.eigh(x))


@_kernel(op.linalg_eigvalsh)
def eigvalsh(x):
    with _not_converging(op.linalg_eigvalsh):
        return torch.linalg.eigvalsh(x).contiguous()


@dialect.kernel(op.linalg_lu_factor, plevel=LIBRARY)
def lu_factor(x):
    return _compact(*torch.linalg.lu_factor_ex(x)[:2])


@dialect.kernel(op.linalg_lu_solve, plevel=LIBRARY)
def lu_solve(lu, pivots, x2, adjoint):
    found = torch.linalg.lu_solve(lu, pivots.to(torch.int32), x2, adjoint=adjoint)
    return found.resolve_conj().contiguous()


@_kernel(op.linalg_eig)
def eig(x):
    with _not_converging(op.linalg_eig):
        return _compact(*torch.linalg.eig(x))


@_kernel(op.linalg_eigvals)
def eigvals(x):
    with _not_converging(op.linalg_eigvals):
        return torch.linalg.eigvals(x).resolve_conj().contiguous()


@_kernel(op.linalg_matrix_exp)
def matrix_exp(x):
    return torch.linalg.matrix_exp(x).resolve_conj().contiguous()
