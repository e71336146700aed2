"""Gradients of convolution over three axes."""

from meta import op
from meta.grad.conv import convolution

convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)
