"""Operators on CUDA: every case, each dialect against the oracle, executors, gradients; singular
values and eigenvalues, of which is checked what does not depend on the signs of the vectors; and
``x[index] = value``, ``x.at`` and ``out=`` beside numpy.

The cases are in float32 and float16 only, so that a few minutes do: the other dtypes take the same
code paths there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import IndexOutOfRange, MetaError
from meta.grad import value_and_grad
from meta.testing import check, opcheck
from meta.testing.case import OpCase, Sample
from tests.op.records import CASES
from tests.op.test_indexing import ARRAYS, BASIC, MASKS, X

pytestmark = pytest.mark.cuda
SAMPLES = [
    pytest.param(c, one, id=f"{c.op}({one})"[:80])
    for c in CASES
    for one in c.samples
    if "cuda" in c.devices
]
DIFFERENTIABLE = [p for p in SAMPLES if p.values[0].grad and p.values[1].has_floats]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_each_dialect_agrees_with_the_oracle(case: OpCase, one: Sample) -> None:
    for dtype in [d for d in case.dtypes if d in ("float16", "float32")] or ["float32"]:
        for dialect in opcheck.accepting(case, one, dtype, "cuda"):
            opcheck.check_dialect(case, one, dtype, dialect, "cuda")


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_eager_interpreter_and_vm_agree(case: OpCase, one: Sample) -> None:
    opcheck.check_executors(case, one, "cuda")


@pytest.mark.parametrize(("case", "one"), DIFFERENTIABLE)
def test_the_gradient_is_right(case: OpCase, one: Sample) -> None:
    opcheck.check_gradient(case, one, "cuda")


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


@pytest.mark.parametrize("index", BASIC + ARRAYS + MASKS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_assignment(index: Any, dtype: str) -> None:
    want = (X % 2).astype(dtype)
    value = np.arange(X[index].size).reshape(X[index].shape).astype(dtype)
    x = meta.array(want, device="cuda")
    memory = x.torch().data_ptr()
    for given in (value, meta.array(value), meta.array(value, device="cuda")):
        x[index] = given
    want[index] = value
    assert str(x.device) == "cuda:0" and x.torch().data_ptr() == memory
    np.testing.assert_array_equal(x.numpy(), want)


def test_indices_on_the_gpu_are_checked() -> None:
    x, i = meta.zeros((3,), device="cuda"), meta.array([0, -1], device="cuda")
    x[i] = 1.0
    x[x > 0] = 2.0
    assert x.tolist() == [2, 0, 2]
    with pytest.raises(IndexOutOfRange):
        x[i + 3] = 1.0
    assert x.tolist() == [2, 0, 2]  # the context is alive


@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "max"])
def test_functional_updates(name: str) -> None:
    index, value = np.array([2, 0, 0]), np.array([3.0, 4.0, 5.0], "float32")
    x = np.array([1.0, 2.0, 6.0], "float32")
    want = getattr(meta.array(x).at[index], name)(value).numpy()
    for i in (index, meta.array(index, device="cuda")):
        found = getattr(meta.array(x, device="cuda").at[i], name)(value)
        assert str(found.device) == "cuda:0"
        np.testing.assert_array_equal(found.numpy(), want)


def test_out() -> None:
    x, z = meta.array([1.0, 2.0], device="cuda"), meta.zeros((2,), device="cuda")
    assert meta.add(x, 1.0, out=z) is z and z.tolist() == [2, 3]
    with pytest.raises(MetaError, match="cuda"):
        meta.add(x, 1.0, out=meta.zeros((2,)))
