"""Derivatives and integrals."""

from __future__ import annotations

import pytest
import torch

from tests.frontend.aten.calls import Call, call, check

X = torch.tensor([[1.0, 4.0, 2.0, 7.0], [0.5, -1.0, 3.0, 2.0], [2.0, 2.5, 9.0, 1.0]])
I = torch.tensor([[1, 4, 2, 7], [0, -1, 3, 2]])  # noqa: E741
T = torch.tensor([0.0, 1.0, 1.5, 4.0])
U = torch.tensor([0.0, 2.0, 2.5])

CASES = [
    call("gradient.scalarint", X),
    call("gradient.scalarint", X, spacing=0.5, dim=-1, edge_order=2),
    call("gradient.scalarint", I, label="integers"),
    call("gradient.scalararray", X, spacing=2.0, dim=[1, 0]),
    call("gradient.array", X, dim=[-1], edge_order=2),
    call("gradient.scalarrayint", X, spacing=[2.0, 3.0]),
    call("gradient.scalarrayarray", X, spacing=[2.0, 3.0], dim=[1, 0]),
    call("gradient.tensorarrayint", X, spacing=[U, T]),
    call("gradient.tensorarray", X, spacing=[T], dim=[1], edge_order=2),
    call("gradient.tensorarray", X[:2], spacing=[U[:2], T], dim=[0, 1], label="two samples"),
    call("gradient.array", X.to(torch.complex64), dim=[0]),
    call("trapezoid.dx", X),
    call("trapezoid.dx", X, dx=0.5, dim=0),
    call("trapezoid.dx", I),
    call("trapezoid.dx", X[:, :1], label="one sample"),
    call("trapezoid.x", X, T),
    call("trapezoid.x", X, X, dim=0),
    call("trapezoid.x", X[None], X, label="places of fewer axes"),
    call("trapz.x", X, U, dim=0),
    call("cumulative_trapezoid.dx", X, dx=2),
    call("cumulative_trapezoid.x", X, U, dim=0),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)
