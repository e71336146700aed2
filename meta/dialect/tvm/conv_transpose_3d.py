"""Transposed convolution over three axes in tensor expressions; they are in `conv_transpose.py`."""

from meta import op
from meta.dialect.tvm.conv_transpose import transposed

transposed(op.conv3d_transpose, op.conv3d_transpose_dx, op.conv3d_transpose_dw)
