"""Gradients of connectionist temporal classification."""

from meta import op
from meta.grad.core import gradient, not_differentiable


@gradient(op.ctc_losses)
def ctc_losses(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, dy):
    """See `ctc_losses_dx`."""
    dx = op.ctc_losses_dx(
        dy, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    return dx, None, None, None


not_differentiable(op.ctc_losses_dx, why="the gradient of a gradient is not implemented")
