"""Singular values and eigenvalues on CUDA: what does not depend on the signs of the vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.grad import value_and_grad
from meta.testing import check

pytestmark = pytest.mark.cuda
SHAPES = [(4, 3), (3, 4), (3, 3), (2, 3, 2), (1, 1), (0, 3), (3, 0), (0, 2, 3)]


def matrices(shape: tuple[int, ...], symmetric: bool = False) -> torch.Tensor:
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return values + values.mT if symmetric else values


def is_orthogonal(columns: torch.Tensor) -> None:
    eye = torch.eye(columns.shape[-1], dtype=columns.dtype).expand_as(columns.mT @ columns)
    torch.testing.assert_close(columns.mT @ columns, eye)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_vectors(shape: tuple[int, ...], full: bool) -> None:
    x = matrices(shape)
    found = meta.linalg.svd(meta.array(x, device="cuda"), full_matrices=full)
    u, s, vh = (part.to(device="cpu").torch() for part in found)
    torch.testing.assert_close(s, torch.linalg.svdvals(x))
    count = s.shape[-1]
    torch.testing.assert_close(u[..., :count] * s[..., None, :] @ vh[..., :count, :], x)
    is_orthogonal(u)
    is_orthogonal(vh.mT)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (0, 0), (0, 2, 2)])
def test_eigenvectors(shape: tuple[int, ...]) -> None:
    x = matrices(shape, symmetric=True)
    found = meta.linalg.eigh(meta.array(x, device="cuda"))
    values, vectors = (part.to(device="cpu").torch() for part in found)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(x))
    torch.testing.assert_close(vectors * values[..., None, :] @ vectors.mT, x)
    is_orthogonal(vectors)


def product(x: Any) -> Any:
    """Of the parts: a function of x in which the signs of the vectors cancel."""
    u, s, vh = meta.linalg.svd(x, full_matrices=False)
    return meta.sum(meta.matmul(u, vh) * meta.matmul(u * meta.exp(s)[..., None, :], vh))


def spectrum(x: Any) -> Any:
    values, vectors = meta.linalg.eigh(x)
    scaled = vectors * meta.sin(values)[..., None, :]
    return meta.sum(meta.matmul(scaled, meta.matrix_transpose(vectors)) ** 2)


@pytest.mark.parametrize("function", [product, spectrum])
def test_gradients_are_the_cpu_s(function: Callable[[Any], Any]) -> None:
    x = matrices((2, 3, 3), symmetric=function is spectrum)
    here, there = (
        value_and_grad(function)(meta.array(x, device=device)) for device in ("cpu", "cuda")
    )
    for found, expected in zip(there, here, strict=True):
        check(found.to(device="cpu"), expected, 1e-9, 1e-9)
