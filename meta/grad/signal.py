"""Gradients of transforms of signals, which are linear: their adjoints."""

from meta import op
from meta.grad.core import gradient


@gradient(op.dft)
def dft(dy, inverse):
    """The other direction, times n or divided by it."""
    extent = dy[0].shape[-1]
    dre, dim = op.dft(*dy, not inverse)
    factor = 1 / extent if inverse else float(extent)
    return dre * factor, dim * factor
