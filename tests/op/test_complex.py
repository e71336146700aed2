"""Gradients of complex numbers beside torch's, which records cannot compare, and Python's complex
numbers beside arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import GradientError

Z = np.array([1 + 2j, -0.3 + 0.1j, 0.5 - 2j])
W = np.array([0.7 - 0.2j, 1.5 + 1j, -0.4 + 0.3j])
M = np.arange(6).reshape(2, 3) + 1j * np.arange(6)[::-1].reshape(2, 3)
R = np.array([0.5, 2.0, -1.0])
ELEMENTARY = (
    *("exp", "log", "sqrt", "rsqrt", "log2", "log10", "log1p", "expm1", "reciprocal", "sin", "cos"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp2"),
    *("square", "abs", "mean", "prod"),
)
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    **{name: (getattr(meta, name), getattr(torch, name), (Z,)) for name in ELEMENTARY},
    "sign": (meta.sign, torch.sgn, (Z,)),
    "multiply": (lambda a, b: a * b, lambda a, b: a * b, (Z, W)),
    "divide": (lambda a, b: a / b, lambda a, b: a / b, (Z, W)),
    "pow": (lambda a, b: a**b, lambda a, b: a**b, (Z, W)),
    "power of a number": (lambda a: a**3, lambda a: a**3, (Z,)),
    "numbers": (lambda a: (a + 1j) * 2j / (1 - 1j), lambda a: (a + 1j) * 2j / (1 - 1j), (Z,)),
    "real by a number": (lambda a: a * (1 + 2j), lambda a: a * (1 + 2j), (R,)),
    "cumsum": (lambda a: meta.cumsum(a, 0), lambda a: torch.cumsum(a, 0), (Z,)),
    "cumprod": (lambda a: meta.cumprod(a, 0), lambda a: torch.cumprod(a, 0), (Z,)),
    "where": (
        lambda a, b: meta.where(meta.array(R > 0), a, b),
        lambda a, b: torch.where(torch.tensor(R > 0), a, b),
        (Z, W),
    ),
    "take": (lambda a: a[[0, 2, 0]], lambda a: a[[0, 2, 0]], (Z,)),
    "matmul": (lambda a, b: a @ b, lambda a, b: a @ b, (M, M.T.copy())),
    "batches": (
        lambda a, b: a @ b,
        lambda a, b: a @ b,
        (np.stack([M, 2j * M]), np.stack([M.T, M.T - 1j])),
    ),
    "einsum": (
        lambda a, b: meta.einsum("ij,kj->ik", a, b),
        lambda a, b: torch.einsum("ij,kj->ik", a, b),
        (M, 1j * M),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name: str) -> None:
    function, of_torch, values = FUNCTIONS[name]
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    expected = of_torch(*tensors)
    rng = np.random.default_rng(0)
    dy = rng.normal(size=expected.shape)
    if expected.is_complex():
        dy = dy + 1j * rng.normal(size=expected.shape)
    arrays = [meta.array(v) for v in values]
    for array in arrays:
        array.requires_grad = True
    found = function(*arrays)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    found.backward(dy)
    expected.backward(torch.tensor(dy))
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_allclose(array.grad.numpy(), tensor.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sqrt", "tanh", "multiply", "pow", "prod", "cumprod", "matmul"])
def test_second_gradients_are_torchs(name: str) -> None:
    function, of_torch, values = FUNCTIONS[name]

    def squared(y: Any) -> Any:
        return (y * y).sum()

    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    first = torch.autograd.grad(squared(of_torch(*tensors)).real, tensors, create_graph=True)
    expected = torch.autograd.grad(sum(squared(g) for g in first).real, tensors)
    arrays = [meta.array(v) for v in values]
    for array in arrays:
        array.requires_grad = True
    found = meta.grad.grad(meta.real(squared(function(*arrays))), arrays, create_graph=True)
    found = meta.grad.grad(meta.real(sum(squared(g) for g in found)), arrays)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        ("float32", "complex64"),
        ("float64", "complex128"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
        ("int8", "complex64"),
        ("bool", "complex64"),
    ],
)
def test_a_complex_number_is_weak(dtype: str, result: str) -> None:
    x = meta.array([1, 0], dtype)
    assert meta.result_type(dtype, 1j) == result
    for y in (x + 0.1j, 0.1j + x, meta.model.trace(lambda x: x + 0.1j)(x)):
        assert y.dtype == result
        exact = np.array([1, 0], result) + np.array(0.1j, result)
        assert np.array_equal(y.numpy(), exact)
    assert np.array_equal((x == 1 + 0j).numpy(), [True, False])


S = np.random.default_rng(0).normal(size=(2, 3, 3)) + 1j * np.eye(3)
V = np.arange(6.0).reshape(2, 3, 1) + 0.5j


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("inv", (S,)),
        ("pinv", (S[:, :, :2],)),
        ("det", (S,)),
        ("solve", (S, V)),
        ("vector_norm", (S,)),
        ("matrix_norm", (S,)),
    ],
)
def test_linear_algebra_and_gradients_are_torchs(name: str, values: tuple[Any, ...]) -> None:
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    arrays = [meta.array(v) for v in values]
    for array in arrays:
        array.requires_grad = True
    expected, found = getattr(torch.linalg, name)(*tensors), getattr(meta.linalg, name)(*arrays)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-9)
    dy = np.ones(expected.shape)
    found.backward(dy)
    expected.backward(torch.tensor(dy, dtype=expected.dtype))
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_allclose(array.grad.numpy(), tensor.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_decompositions_make_the_matrix_again() -> None:
    x, adjoint = meta.array(S), S.conj().swapaxes(-1, -2)
    hermitian = S @ adjoint
    u, s, vh = (part.numpy() for part in meta.linalg.svd(x))
    q, r = (part.numpy() for part in meta.linalg.qr(x))
    w, v = (part.numpy() for part in meta.linalg.eigh(hermitian))
    lower = meta.linalg.cholesky(hermitian).numpy()
    upper = meta.linalg.cholesky(hermitian, upper=True).numpy()
    sign, logarithm = (part.numpy() for part in meta.linalg.slogdet(x))
    assert s.dtype == w.dtype == logarithm.dtype == np.float64
    np.testing.assert_allclose((u * s[:, None]) @ vh, S, atol=1e-12)
    np.testing.assert_allclose(q @ r, S, atol=1e-12)
    np.testing.assert_allclose((v * w[:, None]) @ v.conj().swapaxes(-1, -2), hermitian, atol=1e-12)
    np.testing.assert_allclose(lower @ lower.conj().swapaxes(-1, -2), hermitian, atol=1e-12)
    np.testing.assert_allclose(upper.conj().swapaxes(-1, -2) @ upper, hermitian, atol=1e-12)
    np.testing.assert_allclose(sign * np.exp(logarithm), np.linalg.det(S))
    for rtol in (None, 1e-10, meta.array([1e-10, 1e-10])):
        found = meta.linalg.pinv(x, rtol=rtol).numpy()
        np.testing.assert_allclose(found, np.linalg.pinv(S), atol=1e-10)
        assert meta.linalg.matrix_rank(x, rtol=rtol).tolist() == [3, 3]


@pytest.mark.parametrize("name", ["svd", "qr", "eigh", "cholesky", "slogdet", "svdvals"])
def test_decompositions_say_that_they_have_no_gradient(name: str) -> None:
    x = meta.array(S @ S.conj().swapaxes(-1, -2))
    x.requires_grad = True
    found = getattr(meta.linalg, name)(x)
    part = found[-1] if isinstance(found, tuple) else found
    with pytest.raises(GradientError, match="of real matrices only"):
        part.backward(np.ones(part.shape))


def test_distinct_complex_numbers() -> None:
    x = np.array([1 + 1j, 0, 1 - 1j, 1 + 1j, complex(0, -0.0), complex("nan"), complex("nan")])
    values, inverse, counts = (part.numpy() for part in meta.unique(x, True, True))
    np.testing.assert_array_equal(values, np.unique(x, equal_nan=False))
    np.testing.assert_array_equal(values[inverse], x)
    assert counts.tolist() == [2, 1, 2, 1, 1]


def test_differences_from_1_at_the_edges() -> None:
    inf, nan = np.inf, np.nan
    x = [complex(-0.0, 0), complex(-inf, nan), complex(-inf, inf), complex(nan, 0), complex(inf, 0)]
    found = meta.expm1(meta.array(x, "complex128")).numpy()
    np.testing.assert_array_equal(found.real, [0, -1, -1, nan, inf])
    np.testing.assert_array_equal(found.imag, [0, 0, 0, 0, 0])
    assert not np.signbit(found.real[0])
    small = meta.array([1e-20 + 1e-21j], "complex128")
    for function in (meta.expm1, meta.log1p):
        np.testing.assert_allclose(function(small).numpy(), small.numpy(), rtol=1e-15)
    logarithm = meta.log1p(meta.array([complex(inf, nan), complex(-inf, 2)], "complex128")).numpy()
    np.testing.assert_array_equal(logarithm, [complex(inf, nan), complex(inf, np.pi)])
