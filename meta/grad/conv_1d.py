"""Gradients of convolution over one axis."""

from meta import op
from meta.grad.conv import convolution

convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)
