"""Gradients of calls of functions that are no operators of this package."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(
    op.torch_call, why="it runs a function of PyTorch; differentiate there", missing=True
)
