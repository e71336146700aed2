"""Convolution over three axes; the makers are in `conv.py`."""

from meta import op
from meta.dialect.cudnn.conv import convolution

convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)
