"""Convolution over one axis on ATen; the kernels are in `conv.py`."""

from meta import op
from meta.dialect.torch.conv import convolution

convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)
