"""Pooling over one axis in tensor expressions; they are in `pool.py`."""

from meta import op
from meta.dialect.tvm.pool import adaptive, sliding

sliding(op.max_pool1d, op.max_pool1d_dx, op.avg_pool1d, op.avg_pool1d_dx)
adaptive(
    op.adaptive_max_pool1d,
    op.adaptive_max_pool1d_dx,
    op.adaptive_avg_pool1d,
    op.adaptive_avg_pool1d_dx,
)
