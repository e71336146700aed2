"""Convolution over one axis; the makers are in `conv.py`."""

from meta import op
from meta.dialect.cudnn.conv import convolution

convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)
