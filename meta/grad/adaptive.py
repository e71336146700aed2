"""Gradients of the steps of Adam and its relatives: there are none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(
    op.adam, op.adamw, op.lamb, why="it updates in place what the gradient was taken of"
)
