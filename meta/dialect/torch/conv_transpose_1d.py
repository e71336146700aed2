"""Transposed convolution over one axis on ATen; the kernels are in `conv_transpose.py`."""

from meta import op
from meta.dialect.torch.conv_transpose import transposed

transposed(op.conv1d_transpose, op.conv1d_transpose_dx, op.conv1d_transpose_dw)
