"""Gradients of convolutions. The three operators are each other's gradients.

A layout belongs to x, w or the result wherever they appear, so all three take the same ones.
Transposed convolutions have the same gradients, with one more number in the window.
"""

from meta import op
from meta.grad.core import gradient
from meta.ir.types import TensorType


def _zeros_for_unread(y, dy):
    """Return the gradient of the forward result, which is not read; ``dy`` has its type."""
    return None if y is None else op.zeros_like(dy)


def _convolution(conv, conv_dx, conv_dw):
    """Register the gradients of a convolution over any number of axes, and of its gradients."""

    @gradient(conv)
    def by_input_and_kernel(x, w, dy, *options):
        return conv_dx(w, None, dy, x.shape, *options), conv_dw(x, None, dy, w.shape, *options)

    @gradient(conv_dx)
    def of_dx(x_or_w, y: TensorType, dy, dy_, shape, *options):
        """dx is linear in w and in dy; what multiplies them is a convolution with the other."""
        dw = conv_dw(dy_, None, dy, x_or_w.shape, *options)
        return dw, _zeros_for_unread(y, dy), conv.plain(dy_, x_or_w, *options)

    @gradient(conv_dw)
    def of_dw(x_or_w, y: TensorType, dy, dy_, shape, *options):
        """As for dx: dw is linear in x and in dy."""
        dx = conv_dx(dy_, None, dy, x_or_w.shape, *options)
        return dx, _zeros_for_unread(y, dy), conv.plain(x_or_w, dy_, *options)


for _n in (1, 2, 3):
    for _name in (f"conv{_n}d", f"conv_transpose{_n}d"):
        _convolution(*(getattr(op, _name + suffix) for suffix in ("", "_dx", "_dw")))
