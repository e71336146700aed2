"""What the records cannot say of linear algebra: gradients among symmetric matrices and of several
results, special matrices, and the functions of `meta.linalg` that are composed of operators.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import linalg, op
from meta.base.errors import GradientError, LinAlgError, TypeInferError
from meta.model import trace
from meta.passes import autodiff, infer_type
from meta.runtime.ndarray import ndarray
from meta.testing import check
from meta.testing.compare import numeric_gradient


def matrices(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)


def regular(*shape: int) -> torch.Tensor:
    return matrices(*shape) + 2 * torch.eye(shape[-2], shape[-1], dtype=torch.float64)


def spd(x: Any) -> Any:
    """A symmetric positive definite matrix of any one, for both sides."""
    if isinstance(x, torch.Tensor):
        return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)
    return x @ linalg.matrix_transpose(x) + linalg.matrix_power(x, 0)


def weighted(results: Any) -> Any:
    """One number that depends on every element of every result, not symmetrically."""
    total = None
    for i, y in enumerate(results if isinstance(results, tuple) else (results,)):
        count = int(np.prod(y.shape))
        if isinstance(y, torch.Tensor):
            weights = torch.sin(torch.arange(count, dtype=y.dtype) * 1.3 + i).reshape(y.shape)
            part = (y * weights).sum()
        else:
            weights = np.sin(np.arange(count) * 1.3 + i).reshape(y.shape)
            part = op.sum(y * meta.array(weights, y.dtype))
        total = part if total is None else total + part
    return total


L, T = linalg, torch.linalg
SINGULAR = torch.tensor([[1.0, 2.0, 0.5], [2.0, 4.0, 1.0], [0.5, 1.0, 2.0]], dtype=torch.float64)
LOW_RANK = matrices(4, 2) @ matrices(2, 3, seed=1)
VECTORS = matrices(2, 3, 4)
# name -> (ours, torch's, argument)
DIFFERENTIATED: dict[str, tuple[Any, Any, torch.Tensor]] = {
    "cholesky": (lambda x: L.cholesky(spd(x)), lambda x: T.cholesky(spd(x)), matrices(2, 3, 3)),
    "cholesky, upper": (
        lambda x: L.cholesky(spd(x), upper=True),
        lambda x: T.cholesky(spd(x), upper=True),
        matrices(4, 4),
    ),
    "eigh": (lambda x: tuple(L.eigh(spd(x))), lambda x: tuple(T.eigh(spd(x))), matrices(2, 3, 3)),
    "eigvalsh": (lambda x: L.eigvalsh(spd(x)), lambda x: T.eigvalsh(spd(x)), matrices(4, 4)),
    "qr, tall": (lambda x: tuple(L.qr(x)), lambda x: tuple(T.qr(x)), matrices(2, 4, 3)),
    "qr, wide": (lambda x: tuple(L.qr(x)), lambda x: tuple(T.qr(x)), matrices(3, 5)),
    "qr, square": (
        lambda x: tuple(L.qr(x, mode="complete")),
        lambda x: tuple(T.qr(x, "complete")),
        matrices(3, 3),
    ),
    "slogdet": (lambda x: tuple(L.slogdet(x)), lambda x: tuple(T.slogdet(x)), regular(2, 3, 3)),
    "det, singular": (L.det, T.det, SINGULAR),
    "pinv, low rank": (
        lambda x: L.pinv(x @ meta.array(matrices(2, 3, seed=1))),
        lambda x: T.pinv(x @ matrices(2, 3, seed=1)),
        matrices(4, 2),
    ),
    "pinv, of equal eigenvalues": (
        lambda x: op.linalg_pinv(spd(x), None, 0.0, True),
        lambda x: T.pinv(spd(x), hermitian=True),
        torch.eye(3, dtype=torch.float64),
    ),
    "lstsq": (
        lambda x: L.lstsq(x, meta.array(matrices(4, 2, seed=3)))[0],
        lambda x: T.lstsq(x, matrices(4, 2, seed=3))[0],
        matrices(4, 3),
    ),
    "matrix_power": (lambda x: L.matrix_power(x, 5), lambda x: T.matrix_power(x, 5), regular(2, 2)),
    "matrix_power, negative": (
        lambda x: L.matrix_power(x, -3),
        lambda x: T.matrix_power(x, -3),
        regular(2, 2, 2),
    ),
    "cross": (
        lambda x: L.cross(x, op.roll(x, 1, 0) * 2.0, axis=1),
        lambda x: T.cross(x, x.roll(1, 0) * 2.0, dim=1),
        VECTORS,
    ),
    "trace": (
        lambda x: L.trace(x, offset=1),
        lambda x: x.diagonal(1, -2, -1).sum(-1),
        VECTORS,
    ),
    "vecdot": (
        lambda x: L.vecdot(x, x * x, axis=1),
        lambda x: T.vecdot(x, x * x, dim=1),
        VECTORS,
    ),
    "tensordot": (
        lambda x: L.tensordot(x, x * x, axes=((1, 2), (1, 2))),
        lambda x: torch.tensordot(x, x * x, ([1, 2], [1, 2])),
        VECTORS,
    ),
    "outer": (
        lambda x: L.outer(x, x * x),
        lambda x: torch.outer(x, x * x),
        VECTORS[0, 0],
    ),
}
for _m, _n in ((4, 3), (3, 4), (3, 3)):
    DIFFERENTIATED[f"svd, {_m} x {_n}"] = (
        lambda x: tuple(L.svd(x, full_matrices=False)),
        lambda x: tuple(T.svd(x, full_matrices=False)),
        matrices(2, _m, _n),
    )
for _ord in (1, 2, 3, 1.5, 0.5, -1, -2.5, inf, -inf):
    for _axis in (None, 1, (0, 2)):
        DIFFERENTIATED[f"vector_norm, {_ord}, {_axis}"] = (
            lambda x, o=_ord, a=_axis: L.vector_norm(x, ord=o, axis=a, keepdims=True),
            lambda x, o=_ord, a=_axis: T.vector_norm(x, ord=o, dim=a, keepdim=True),
            VECTORS,
        )
for _ord in ("fro", "nuc", 1, -1, 2, -2, inf, -inf):
    DIFFERENTIATED[f"matrix_norm, {_ord}"] = (
        lambda x, o=_ord: L.matrix_norm(x, ord=o),
        lambda x, o=_ord: T.matrix_norm(x, ord=o),
        VECTORS,
    )
    DIFFERENTIATED[f"norm, {_ord}"] = (
        lambda x, o=_ord: L.norm(x, o, (2, 0), True),
        lambda x, o=_ord: T.norm(x, o, (2, 0), True),
        VECTORS,
    )


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    ours, theirs, x = DIFFERENTIATED[name]
    leaf = x.clone().requires_grad_()
    expected = theirs(leaf)
    total = weighted(expected)
    dx = torch.zeros_like(x)
    if total.requires_grad:
        (dx,) = torch.autograd.grad(total, leaf)

    array = ndarray(x.clone())
    array.requires_grad = True
    found = ours(array)
    check(found, expected, 1e-9, 1e-10, what=name)
    if not total.requires_grad:
        return
    weighted(found).backward()
    check(array.grad, dx, 1e-7, 1e-8, what=f"gradient of {name}")
    (numeric,) = numeric_gradient(
        lambda t: weighted(ours(ndarray(t.clone()))).torch(), [x.clone()], torch.ones(())
    )
    check(array.grad, numeric, 1e-4, 1e-5, what=f"numeric gradient of {name}")


COMPILED = [name for name in DIFFERENTIATED if "norm" not in name]


@pytest.mark.parametrize("name", [*COMPILED, "vector_norm, 2, 1", "matrix_norm, nuc"])
def test_compiled_programs_have_the_same_values_and_gradients(name: str) -> None:
    ours, theirs, x = DIFFERENTIATED[name]
    leaf = x.clone().requires_grad_()
    total = weighted(theirs(leaf))
    (dx,) = torch.autograd.grad(total, leaf)
    array, dy = ndarray(x.clone()), meta.array(1.0, "float64")
    program = trace(lambda x: weighted(ours(x))).program(array)
    module = infer_type(autodiff(program.module, wrt=[0]))
    y, (found,) = meta.vm.compile(module, dy, array)(dy, array)
    check(y, total, 1e-9, 1e-10, what=name)
    check(found, dx, 1e-7, 1e-8, what=f"gradient of {name}")


RESULTS: dict[str, tuple[Any, Any]] = {
    "norm of a vector": (lambda: L.norm(VECTORS[0, 0]), lambda: T.norm(VECTORS[0, 0])),
    "norm of all": (lambda: L.norm(VECTORS), lambda: T.norm(VECTORS)),
    "norm by rows": (lambda: L.norm(VECTORS, inf, -1), lambda: T.norm(VECTORS, inf, -1)),
    "norm over no axes": (
        lambda: L.vector_norm(VECTORS, axis=()),
        lambda: VECTORS.abs(),
    ),
    "count of what is not 0": (
        lambda: L.vector_norm(LOW_RANK.triu(), axis=0, ord=0),
        lambda: T.vector_norm(LOW_RANK.triu(), dim=0, ord=0),
    ),
    "norm of nothing": (lambda: L.vector_norm(np.zeros((2, 0)), axis=1), lambda: np.zeros(2)),
    "norm of a number": (lambda: L.vector_norm(np.array(-3.0)), lambda: np.array(3.0)),
    "matrix_norm, keepdims": (
        lambda: L.matrix_norm(VECTORS, keepdims=True),
        lambda: T.matrix_norm(VECTORS, keepdim=True),
    ),
    "rank": (lambda: L.matrix_rank(LOW_RANK), lambda: np.array(2)),
    "rank, batch": (lambda: L.matrix_rank(VECTORS), lambda: np.array([3, 3])),
    "rank, tolerance": (
        lambda: L.matrix_rank(np.diag([1.0, 0.1, 0.01]), rtol=0.05),
        lambda: np.array(2),
    ),
    "rank of nothing": (lambda: L.matrix_rank(np.zeros((2, 0, 3))), lambda: np.array([0, 0])),
    "rank of zeros": (lambda: L.matrix_rank(np.zeros((3, 3))), lambda: np.array(0)),
    "power 0": (lambda: L.matrix_power(VECTORS[:, :, :3], 0), lambda: np.stack([np.eye(3)] * 2)),
    "lstsq": (
        lambda: tuple(L.lstsq(regular(4, 2), matrices(4))),
        lambda: (
            *np.linalg.lstsq(regular(4, 2).numpy(), matrices(4).numpy(), rcond=None)[:2],
            np.array(2),
            T.svdvals(regular(4, 2)),
        ),
    ),
    "lstsq, low rank": (
        lambda: L.lstsq(LOW_RANK, matrices(4, 2))[0],
        lambda: T.lstsq(LOW_RANK, matrices(4, 2), driver="gelsy")[0],
    ),
    "tensordot of numbers": (
        lambda: L.tensordot(VECTORS, VECTORS, axes=0),
        lambda: torch.tensordot(VECTORS, VECTORS, 0),
    ),
    "tensordot": (
        lambda: L.tensordot(VECTORS, matrices(3, 4, 5)),
        lambda: torch.tensordot(VECTORS, matrices(3, 4, 5), 2),
    ),
    "matmul": (
        lambda: L.matmul(VECTORS, matrices(4, 2)),
        lambda: VECTORS @ matrices(4, 2),
    ),
    "cross, broadcast": (
        lambda: L.cross(matrices(5, 1, 3), matrices(2, 3)),
        lambda: T.cross(matrices(5, 1, 3), matrices(2, 3)[None]),
    ),
    "integers": (
        lambda: L.trace(np.arange(9, dtype=np.int32).reshape(3, 3)),
        lambda: np.array(12),
    ),
    "half precision": (
        lambda: L.vector_norm(meta.array([300.0, 400.0], "float16")),
        lambda: np.array(500.0),
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str) -> None:
    ours, expected = RESULTS[name]
    check(ours(), expected(), 1e-9, 1e-9, what=name)


def test_results_have_the_names_of_the_standard() -> None:
    x = meta.array(matrices(3, 3))
    assert L.svd(x)._fields == ("U", "S", "Vh")
    assert L.qr(x)._fields == ("Q", "R")
    assert L.slogdet(x)._fields == ("sign", "logabsdet")
    assert L.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    traced = trace(lambda x: L.svd(x))(x)
    check(traced.S, L.svdvals(x))


def test_a_symmetric_matrix_is_read_from_its_lower_triangle() -> None:
    x = spd(matrices(3, 3))
    for function in (L.cholesky, L.eigvalsh, lambda a: L.eigh(a).eigenvalues):
        check(function(x.tril()), function(x), 1e-12, 1e-12)


ZERO = torch.zeros(3, 3, dtype=torch.float64)
FAILING: dict[str, tuple[Any, str]] = {
    "inv": (lambda: L.inv(SINGULAR * 0), "a matrix is singular"),
    "solve": (lambda: L.solve(ZERO, ZERO), "a matrix is singular"),
    "solve, one of a batch": (
        lambda: L.solve(torch.stack([regular(3, 3), ZERO]), ZERO),
        "Batch element 1",
    ),
    "solve_triangular": (lambda: L.solve_triangular(ZERO, ZERO, True), "triangular matrix"),
    "cholesky": (lambda: L.cholesky(-regular(3, 3)), "not positive definite"),
    "svd": (lambda: L.svd(ZERO * np.nan), "does not converge"),
    "svdvals": (lambda: L.svdvals(ZERO * np.nan), "does not converge"),
    "eigh": (lambda: L.eigh(ZERO * np.nan), "does not converge"),
    "matrix_power": (lambda: L.matrix_power(ZERO, -1), "a matrix is singular"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_matrix_without_a_result_is_an_error(name: str) -> None:
    call, match = FAILING[name]
    with pytest.raises(LinAlgError, match=match) as caught:
        call()
    assert caught.value.op is not None
    assert caught.value.hint is not None


def test_a_compiled_program_says_that_a_matrix_is_singular() -> None:
    inverse = meta.vm.compile(trace(lambda x: L.inv(x) * 2.0), meta.array(ZERO))
    with pytest.raises(LinAlgError, match="a matrix is singular") as caught:
        inverse(meta.array(ZERO))
    assert isinstance(caught.value.__cause__, torch.linalg.LinAlgError)


WITHOUT_GRADIENT = {
    "svd": lambda x: L.svd(x).U,
    "qr": lambda x: L.qr(x, mode="complete").Q,
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_vectors_that_complete_a_basis_have_no_gradient(name: str) -> None:
    x = meta.array(matrices(4, 3))
    x.requires_grad = True
    y = op.sum(WITHOUT_GRADIENT[name](x))
    with pytest.raises(GradientError, match="complete a basis"):
        y.backward()


def test_equal_values_matter_only_to_gradients_of_their_vectors() -> None:
    x = meta.array(np.eye(3))
    x.requires_grad = True
    for values in (L.svdvals, L.eigvalsh, lambda a: L.svd(a).S, lambda a: L.eigh(a)[0]):
        (dx,) = meta.grad.grad(op.sum(values(x)), [x])
        check(dx, np.eye(3), 1e-12, 1e-12)
    (dx,) = meta.grad.grad(weighted(L.eigh(x)[1]), [x])
    assert not np.isfinite(dx.numpy()).all()


def test_the_number_of_elements_that_are_not_0_has_a_gradient_of_0() -> None:
    values = [[0.0, -0.0, 3.0], [np.nan, -1e-300, 0.0]]
    x = meta.array(values, "float64")
    x.requires_grad = True
    found = L.vector_norm(x, axis=1, ord=0)
    found.backward(np.ones(2))
    check(found, T.vector_norm(torch.tensor(values, dtype=torch.float64), 0, 1))
    assert not x.grad.numpy().any()


def test_the_gradient_of_a_norm_at_zero_is_zero() -> None:
    x = meta.array(np.zeros((2, 2)))
    x.requires_grad = True
    for y in (L.norm(x), L.matrix_norm(x), L.vector_norm(x, ord=3)):
        (dx,) = meta.grad.grad(y, [x])
        check(dx, np.zeros((2, 2)))


REFUSED: dict[str, tuple[Any, str]] = {
    "norm of integers": (lambda: L.norm([1, 2]), "must be floating point"),
    "norm of three axes": (lambda: L.norm(VECTORS, 1), "a vector or a matrix"),
    "norm, axis twice": (lambda: L.norm(VECTORS, 1, (0, 0)), "named twice"),
    "nuclear norm of a vector": (lambda: L.norm(VECTORS, "nuc", 1), "a vector or a matrix"),
    "matrix_norm, ord": (lambda: L.matrix_norm(VECTORS, ord=3), "unknown ord"),
    "matrix_norm of a vector": (lambda: L.matrix_norm(VECTORS[0, 0]), "must be a matrix"),
    "power of a wide matrix": (lambda: L.matrix_power(VECTORS, 2), "must be a square matrix"),
    "outer of matrices": (lambda: L.outer(VECTORS, VECTORS), "must be vectors"),
    "cross of pairs": (lambda: L.cross(matrices(2), matrices(2)), "vectors of 3 elements"),
    "cross of unequal": (lambda: L.cross(matrices(2), matrices(3)), "differ in length"),
    "vecdot, axis": (lambda: L.vecdot(VECTORS, VECTORS[0], axis=0), "counted from the end"),
    "tensordot": (lambda: L.tensordot(VECTORS, VECTORS), "differ in extent"),
    "trace of a vector": (lambda: L.trace(matrices(2)), "must be a matrix"),
    "half precision": (lambda: L.inv(meta.array(np.eye(2), "float16")), 'meta.astype.x, "float32"'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with pytest.raises(TypeInferError, match=match):
        call()


def test_eigenvectors_are_multiplied_by_their_eigenvalues() -> None:
    x = meta.array(matrices(2, 4, 4))
    values, vectors = linalg.eig(x)
    whole = op.astype(x, "complex128")
    torch.testing.assert_close(
        (whole @ vectors).torch(), (vectors * op.expand_dims(values, -2)).torch()
    )
    assert vectors.dtype == "complex128"


def test_a_factored_matrix_solves() -> None:
    x, b = meta.array(regular(2, 3, 3)), meta.array(matrices(2, 3, 2))
    found = linalg.lu_solve(*linalg.lu_factor(x), b)
    torch.testing.assert_close((x @ found).torch(), b.torch())
