"""Resizing a signal in tensor expressions; the functions are in `resize.py`."""

from meta import op
from meta.dialect.tvm.resize import resizing

resizing(op.resize1d, op.resize1d_dx)
