"""Gradients of optimizer steps of several parameters at once: there are none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.lans, why="it updates in place what the gradient was taken of")
