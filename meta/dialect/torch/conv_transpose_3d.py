"""Transposed convolution over three axes on ATen; the kernels are in `conv_transpose.py`."""

from meta import op
from meta.dialect.torch.conv_transpose import transposed

transposed(op.conv3d_transpose, op.conv3d_transpose_dx, op.conv3d_transpose_dw)
