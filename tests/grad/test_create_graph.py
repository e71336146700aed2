"""`meta.grad.grad`, and gradients that are differentiated in turn."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import GradientError
from meta.grad import grad

SHAPE = (3, 4)


def leaf(*shape: int, seed: int = 0) -> meta.ndarray:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    array = meta.array(values)
    array.requires_grad = True
    return array


def twin(array: meta.ndarray) -> torch.Tensor:
    return array.detach().torch().clone().requires_grad_()


def equal(found: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.torch(), expected, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_a_gradient() -> None:
    x, dy = leaf(*SHAPE), leaf(*SHAPE, seed=1)
    tx, tdy = twin(x), twin(dy)
    dx = grad(op.tanh(op.exp(x)), x, dy, create_graph=True)
    (t_dx,) = torch.autograd.grad(tx.exp().tanh(), tx, tdy, create_graph=True)
    equal(dx, t_dx.detach())
    v = torch.randn(SHAPE)
    found = grad(dx, (x, dy), v)
    expected = torch.autograd.grad(t_dx, (tx, tdy), v)
    for ours, theirs in zip(found, expected, strict=True):
        equal(ours, theirs)
    assert x.grad is None
    assert not found[0].requires_grad


def test_third_derivatives() -> None:
    x = leaf()
    tx = twin(x)
    y, ty = op.sigmoid(x), tx.sigmoid()
    for _ in range(3):
        y = grad(y, x, create_graph=True)
        (ty,) = torch.autograd.grad(ty, tx, create_graph=True)
        equal(y, ty.detach())


def test_backward_can_be_recorded() -> None:
    x = leaf(*SHAPE)
    tx = twin(x)
    op.sum(x * x * x).backward(create_graph=True)
    slope, x.grad = x.grad, None
    op.sum(slope * slope).backward()
    (t_slope,) = torch.autograd.grad((tx**3).sum(), tx, create_graph=True)
    (t_slope**2).sum().backward()
    equal(x.grad, tx.grad)


def test_by_what_was_computed_and_by_what_was_not_used() -> None:
    x, unused = leaf(*SHAPE), leaf(2)
    a = op.exp(x)
    da, none, dx = grad(op.tanh(a) * a, (a, unused, x), op.ones_like(a))
    ta = twin(a)
    (ta.tanh() * ta).sum().backward()
    equal(da, ta.grad)
    equal(none, torch.zeros(2))
    equal(dx, ta.grad * a.torch())


def test_several_results_add_up() -> None:
    x = leaf(*SHAPE)
    found = grad((op.exp(x), x, op.sum(x)), x, (op.ones_like(x), op.ones_like(x), None))
    equal(found, x.torch().exp() + 2)


def test_a_gradient_that_is_not_recorded_does_not_lead_to_dy() -> None:
    x, dy = leaf(*SHAPE), leaf(*SHAPE, seed=1)
    (x + x).backward(dy)
    assert not x.grad.requires_grad
    assert not grad(x + 0.0, x, dy).requires_grad


def test_grad_of_what_was_not_recorded() -> None:
    x, constant = leaf(2), meta.array([1.0, 2.0])
    with pytest.raises(GradientError, match="neither requires one"):
        grad(constant * 2.0, x)
    with pytest.raises(GradientError, match="neither requires one"):
        grad(x * 2.0, constant, constant)


def test_a_recorded_gradient_lives_as_long_as_its_result() -> None:
    x = leaf(*SHAPE)
    y = op.tanh(x)
    dx = grad(y, x, op.ones_like(x), create_graph=True)
    array, buffer = weakref.ref(y), weakref.ref(y.tensor)
    gc.disable()
    try:
        del y
        assert array() is None
        assert buffer() is not None  # it is kept for the gradient of the gradient
        del dx
        assert buffer() is None
    finally:
        gc.enable()
