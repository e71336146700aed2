"""Resizing a volume on ATen; the kernels are in `resize.py`."""

from meta import op
from meta.dialect.torch.resize import resizing

resizing(op.resize3d, op.resize3d_dx)
