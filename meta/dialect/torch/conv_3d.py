"""Convolution over three axes on ATen; the kernels are in `conv.py`."""

from meta import op
from meta.dialect.torch.conv import convolution

convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)
