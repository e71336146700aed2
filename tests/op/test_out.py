"""``out=``: the result of a call goes into an array that there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, GradientError, MetaError, TraceError
from meta.base.registry import OPERATORS

X = np.arange(1, 7, dtype="float32").reshape(2, 3)
CALLS: list[tuple[Any, Any, str]] = [
    (lambda o: meta.add(meta.array(X), meta.array(X), out=o), X + X, "float32"),
    (lambda o: meta.multiply(X, 2.0, out=o), X * 2, "float32"),
    (lambda o: meta.divide(meta.array(X), meta.array([2.0, 4.0, 8.0]), out=o), X / [2, 4, 8], ""),
    (lambda o: meta.sqrt(meta.array(X), out=o), np.sqrt(X), "float32"),
    (lambda o: meta.less(meta.array(X), 3.0, out=o), X < 3, "bool"),
    (lambda o: meta.astype(meta.array(X), "int64", out=o), X, "int64"),
    (lambda o: meta.matmul(meta.array(X), meta.array(X.T), out=o), X @ X.T, "float32"),
    (lambda o: meta.sum(meta.array(X), axis=0, out=o), X.sum(0), "float32"),
    (lambda o: meta.array(X).mean(out=o), X.mean(), "float32"),
    (lambda o: meta.reshape(meta.array(X), (3, 2), out=o), X.reshape(3, 2), "float32"),
]


@pytest.mark.parametrize("call, want, dtype", CALLS)
def test_it_is_written_and_returned(call: Any, want: Any, dtype: str) -> None:
    tensor = torch.zeros(np.shape(want), dtype=getattr(torch, dtype or "float32"))
    z = meta.from_dlpack(tensor)
    assert call(z) is z
    np.testing.assert_allclose(z.numpy(), want, rtol=1e-6)
    assert tensor.tolist() == z.tolist()  # its own memory
    strided = meta.from_dlpack(torch.zeros(*np.shape(want), 2, dtype=tensor.dtype)[..., 1])
    assert call(strided) is strided
    np.testing.assert_array_equal(strided.numpy(), z.numpy())
    assert call(None).tolist() == z.tolist()


def test_an_argument_may_be_out() -> None:
    x = meta.array(X)
    assert meta.add(x, x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), 2 * X)
    square = meta.array([[0.0, 1.0], [2.0, 0.0]])
    meta.matmul(square, square, out=square)
    assert square.tolist() == [[2, 0], [0, 2]]


def test_another_type_is_refused() -> None:
    x = meta.array(X)
    for out in (
        meta.zeros((3, 2)),
        meta.zeros((1, 2, 3)),
        meta.zeros((2, 3), "float64"),
        np.zeros((2, 3), "float32"),
        torch.zeros(2, 3),
        (x,),
    ):
        with pytest.raises(ArgumentError, match="out"):
            meta.add(x, x, out=out)
    with pytest.raises(ArgumentError, match="one array"):
        meta.split(x, 3, 1, out=meta.zeros((2, 1)))
    with pytest.raises(ArgumentError, match="one array"):
        meta.shape(x, out=x)
    with pytest.raises(ArgumentError, match="share memory"):
        meta.add(x, x, out=meta.from_dlpack(torch.zeros(1, 1).expand(2, 3)))


def test_a_call_that_fails_writes_nothing() -> None:
    z = meta.zeros((2, 3))
    with pytest.raises(MetaError):
        meta.add(meta.array(X), meta.zeros((4,)), out=z)
    assert not z.any().item()


def test_gradients() -> None:
    x, z = meta.array(X), meta.zeros((2, 3))
    x.requires_grad = True
    with pytest.raises(GradientError, match="not recorded"):
        meta.add(x, 1.0, out=z)
    with pytest.raises(GradientError, match="no_grad"):
        meta.add(z, 1.0, out=x)
    assert not z.any().item()
    y = x * 2.0
    with meta.no_grad():
        assert meta.add(x, 1.0, out=z) is z and not z.requires_grad
        assert meta.multiply(x, 2.0, out=x) is x and x.requires_grad
        with pytest.raises(GradientError, match="computed"):
            meta.add(z, 1.0, out=y)
    np.testing.assert_array_equal(x.numpy(), 2 * X)


def test_what_the_tape_has_kept() -> None:
    w, x = meta.array([1.0, 2.0]), meta.array([3.0, 4.0])
    w.requires_grad = True
    y = (w * x).sum()
    meta.add(x.detach(), 1.0, out=x)
    with pytest.raises(GradientError, match="written in place"):
        y.backward()


@pytest.mark.parametrize("name", ["add", "matmul", "exp"])
def test_traced_code_is_told_the_cure(name: str) -> None:
    x, z = meta.array([[1.0]]), meta.zeros((1, 1))
    arguments = (x,) if name == "exp" else (x, x)
    for out in (z, None):
        with pytest.raises(TraceError, match=f"meta.{name}"):
            meta.model.trace(
                lambda *a, out=out: OPERATORS[name](*a, out=a[0] if out is None else out)
            )(*arguments)
    assert z.item() == 0
