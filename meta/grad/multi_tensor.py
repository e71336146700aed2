"""Gradients of optimizer steps of several parameters: there are none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(
    *(op.multi_tensor_sgd, op.multi_tensor_adam, op.multi_tensor_adamw),
    *(op.multi_tensor_lamb, op.multi_tensor_lans),
    why="it updates in place what the gradient was taken of",
)
not_differentiable(op.multi_tensor_axpby, why="it writes in place")
not_differentiable(op.multi_tensor_norm, why="it measures gradients; sum(x * x) has a gradient")
