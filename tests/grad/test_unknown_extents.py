"""Gradients of operands that are broadcast along an axis whose extent is known at run time only."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.model import Model, trace, value_and_grad

FUNCTIONS = {
    "batch_matmul": (op.batch_matmul, torch.matmul, (2, 4, 5)),
    "multiply": (op.multiply, torch.mul, (2, 3, 4)),
    "add": (op.add, torch.add, (2, 1, 4)),
}


class Rows(Model):
    """A function of the rows that a mask picks, and of an array with two rows."""

    def build(self, function: Any, x: meta.ndarray, y: meta.ndarray) -> None:
        """Keep the operands, of shapes [3, 3, 4] and [2, ...]."""
        self.function, self.x, self.y = function, x, y

    @trace
    def forward(self, mask: Any) -> Any:
        """Return the sum of the squares."""
        rows = op.take(self.x, op.reshape(op.argwhere(mask), (-1,)), 0)
        return op.sum(op.square(self.function(rows, self.y)))


@pytest.mark.parametrize("compiled", [False, True], ids=["traced", "compiled"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_broadcast_along_an_unknown_extent(name: str, rows: int, compiled: bool) -> None:
    ours, theirs, shape = FUNCTIONS[name]
    mask = torch.arange(3) < rows
    x, y = torch.rand(3, 3, 4).requires_grad_(), torch.rand(shape).requires_grad_()
    theirs(x[mask], y).square().sum().backward()
    arrays = [meta.array(t.detach().clone()) for t in (x, y)]
    for array in arrays:
        array.requires_grad = True
    model = value_and_grad(Rows(ours, *arrays))
    args = (meta.array(1.0), meta.array(mask))
    _, gradients = meta.vm.compile(model, *args)(*args) if compiled else model(*args)
    torch.testing.assert_close(gradients["x"].torch(), x.grad)
    torch.testing.assert_close(gradients["y"].torch(), y.grad)
