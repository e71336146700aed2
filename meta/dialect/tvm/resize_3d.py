"""Resizing a volume in tensor expressions; the functions are in `resize.py`."""

from meta import op
from meta.dialect.tvm.resize import resizing

resizing(op.resize3d, op.resize3d_dx)
