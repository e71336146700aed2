"""Pooling over three axes on ATen; the kernels are in `pool.py`."""

from meta import op
from meta.dialect.torch.pool import adaptive, sliding

sliding(op.max_pool3d, op.max_pool3d_dx, op.avg_pool3d, op.avg_pool3d_dx)
adaptive(
    op.adaptive_max_pool3d,
    op.adaptive_max_pool3d_dx,
    op.adaptive_avg_pool3d,
    op.adaptive_avg_pool3d_dx,
)
