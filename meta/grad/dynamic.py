"""What the operators with results of unknown extent say about gradients, in their order."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.argwhere, op.upper_bound_argwhere, op.nonzero, why="the results are indices")
not_differentiable(op.unique, why="which elements are equal changes in steps")
not_differentiable(
    op.sparse_fill_empty_rows, why="where an element goes depends on which rows are empty"
)
