"""Gradients of matrix products. No factor is ever transposed in memory: another product does it.

For y = a b, da = dy bᵀ and db = aᵀ dy; the other forms follow by transposing.
"""

from meta import op
from meta.grad.core import collapse, gradient, not_differentiable


@gradient(op.matmul)
def matmul(x1, x2, dy):
    return op.matmul_nt(dy, x2), op.matmul_tn(x1, dy)


@gradient(op.matmul_nt, op.dense)
def matmul_nt(x1, x2, dy):
    return op.matmul(dy, x2), op.matmul_tn(dy, x1)


@gradient(op.matmul_tn)
def matmul_tn(x1, x2, dy):
    return op.matmul_nt(x2, dy), op.matmul(x1, dy)


@gradient(op.matmul_tt)
def matmul_tt(x1, x2, dy):
    return op.matmul_tt(x2, dy), op.matmul_tt(dy, x1)


def _collapsed(dx1, dx2, x1, x2):
    """Sum over the batch where one matrix was used with every matrix of the other operand."""
    return collapse(dx1, x1), collapse(dx2, x2)


@gradient(op.batch_matmul)
def batch_matmul(x1, x2, dy):
    return _collapsed(op.batch_matmul_nt(dy, x2), op.batch_matmul_tn(x1, dy), x1, x2)


@gradient(op.batch_matmul_nt)
def batch_matmul_nt(x1, x2, dy):
    return _collapsed(op.batch_matmul(dy, x2), op.batch_matmul_tn(dy, x1), x1, x2)


@gradient(op.batch_matmul_tn)
def batch_matmul_tn(x1, x2, dy):
    return _collapsed(op.batch_matmul_nt(x2, dy), op.batch_matmul(x1, dy), x1, x2)


@gradient(op.batch_matmul_tt)
def batch_matmul_tt(x1, x2, dy):
    return _collapsed(op.batch_matmul_tt(x2, dy), op.batch_matmul_tt(dy, x1), x1, x2)


not_differentiable(op.scaled_matmul, why="its factors are float8, which has no gradient")
