"""Convolution over three axes in tensor expressions; they are in `conv.py`."""

from meta import op
from meta.dialect.tvm.conv import convolution

convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)
