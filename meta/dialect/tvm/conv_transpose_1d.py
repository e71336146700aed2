"""Transposed convolution over one axis in tensor expressions; they are in `conv_transpose.py`."""

from meta import op
from meta.dialect.tvm.conv_transpose import transposed

transposed(op.conv1d_transpose, op.conv1d_transpose_dx, op.conv1d_transpose_dw)
