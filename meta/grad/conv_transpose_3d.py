"""Gradients of transposed convolution over three axes."""

from meta import op
from meta.grad.conv_transpose import transposed

transposed(op.conv3d_transpose, op.conv3d_transpose_dx, op.conv3d_transpose_dw)
