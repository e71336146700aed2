"""Gradients of the operators of `meta/op/classify.py`: the questions have none."""

from meta import op
from meta.grad.core import gradient, not_differentiable, onto

not_differentiable(op.isnan, op.isinf, op.isfinite, why="the result is bool")
not_differentiable(op.isposinf, op.isneginf, op.signbit, why="the result is bool")


@gradient(op.nan_to_num)
def nan_to_num(x, dy):
    """dx = dy where x is finite, else 0"""
    return onto(x, lambda: op.where(op.isfinite(x), dy, 0))
