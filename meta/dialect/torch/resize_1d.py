"""Resizing a signal on ATen; the kernels are in `resize.py`."""

from meta import op
from meta.dialect.torch.resize import resizing

resizing(op.resize1d, op.resize1d_dx)
