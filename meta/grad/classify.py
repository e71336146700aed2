"""Gradients of the questions of `meta/op/classify.py`: none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.isnan, op.isinf, op.isfinite, why="the result is bool")
