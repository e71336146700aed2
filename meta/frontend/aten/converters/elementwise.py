"""Elementwise arithmetic."""

from meta import op
from meta.frontend.aten.promotion import promoted
from meta.frontend.aten.registry import aten


@aten("add.Tensor", "add.Scalar", op.add, op.multiply)
def add(x, y, *, alpha):
    x, y = promoted(x, y)
    return op.add(x, y if alpha == 1 else op.multiply(y, alpha))


@aten("relu", op.relu)
def relu(x):
    return op.relu(x)
