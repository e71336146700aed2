"""Gradients of random numbers and dropout."""

from meta import op
from meta.grad.core import gradient, not_differentiable


@gradient(op.dropout_train)
def dropout_train(y, dy, p):
    _, mask, reserve_space = y
    return op.dropout_dx(dy[0], mask, reserve_space, p), None


@gradient(op.dropout_dx)
def dropout_dx(mask, reserve_space, dy_, p):
    return op.dropout_dx(dy_, mask, reserve_space, p), None, None


not_differentiable(op.dropout_mask, why="what is kept does not depend on a number but on a key")
not_differentiable(
    *(op.random_uniform, op.random_normal, op.random_integers),
    why="what is drawn does not depend on a number but on a key",
)
not_differentiable(op.random_key, why="a key is no number to compute with")
not_differentiable(op.threefry_generate, op.threefry_split, why="states and numbers are integers")
not_differentiable(op.bits_to_uniform, why="bits are integers")
