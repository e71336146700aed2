"""Convolution over one axis in tensor expressions; they are in `conv.py`."""

from meta import op
from meta.dialect.tvm.conv import convolution

convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)
