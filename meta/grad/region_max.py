"""Gradients of maxima over regions of interest."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(
    op.roi_pool,
    why="where the greatest element of a bin lies is not kept; roi_align is differentiable",
)
