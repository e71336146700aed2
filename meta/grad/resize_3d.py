"""Gradients of resizing a volume; see `resize.py`."""

from meta import op
from meta.grad.resize import resizing

resizing(op.resize3d, op.resize3d_dx)
