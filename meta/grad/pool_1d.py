"""Gradients of pooling over one axis."""

from meta import op
from meta.grad.pool import adaptive, sliding

sliding(op.max_pool1d, op.max_pool1d_dx, op.avg_pool1d, op.avg_pool1d_dx)
adaptive(
    op.adaptive_max_pool1d,
    op.adaptive_max_pool1d_dx,
    op.adaptive_avg_pool1d,
    op.adaptive_avg_pool1d_dx,
)
