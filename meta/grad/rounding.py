"""Gradients of rounding and of the sign: they are piecewise constant, so 0, also at the jumps.

It is a gradient of zeros, not none, as torch: a model that rounds can be differentiated.
"""

from meta import op
from meta.grad.core import gradient


@gradient(op.ceil)
def ceil(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.floor)
def floor(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.round)
def round(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.trunc)
def trunc(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.sign)
def sign(dy):
    """dx = 0"""
    return op.zeros_like(dy)


@gradient(op.frac)
def frac(dy):
    """dx = dy, the jumps left out"""
    return dy
