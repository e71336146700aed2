"""Gradients of resizing a signal; see `resize.py`."""

from meta import op
from meta.grad.resize import resizing

resizing(op.resize1d, op.resize1d_dx)
