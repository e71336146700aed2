"""Gradients of optimizer steps: there are none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.sgd, why="it updates in place what the gradient was taken of")
