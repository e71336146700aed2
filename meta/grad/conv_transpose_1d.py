"""Gradients of transposed convolution over one axis."""

from meta import op
from meta.grad.conv_transpose import transposed

transposed(op.conv1d_transpose, op.conv1d_transpose_dx, op.conv1d_transpose_dw)
