"""Gradients of losses."""

from math import prod

from meta import op
from meta.grad.core import gradient, gradients, not_differentiable

gradients(
    {
        op.smooth_l1_loss: lambda y_true, y_pred, dy: (
            dy * op.smooth_l1_loss_dtrue(y_true, y_pred),
            dy * op.smooth_l1_loss_dpred(y_true, y_pred),
        ),
        op.nll_loss: lambda y_true, y_pred, dy: (None, op.nll_loss_dpred(dy, y_true, y_pred)),
        op.cross_entropy: lambda y_true, y_pred, dy: (
            None,
            op.cross_entropy_dpred(dy, y_true, y_pred),
        ),
    }
)
not_differentiable(
    op.nll_loss_dtrue, op.cross_entropy_dtrue, why="the result is zero whatever the arguments are"
)


@gradient(op.smooth_l1_loss_dpred)
def smooth_l1_loss_dpred(y_true, y_pred, dy):
    """By y_pred that of ``clip(y_pred - y_true, -1, 1) / size``."""
    inside = op.abs(y_pred - y_true) < 1.0
    by_pred = dy * op.cast(inside, dy.dtype) / max(y_pred.size, 1)
    return -by_pred, by_pred


@gradient(op.smooth_l1_loss_dtrue)
def smooth_l1_loss_dtrue(y_true, y_pred, dy):
    return smooth_l1_loss_dpred(y_true, y_pred, dy)[::-1]


@gradient(op.nll_loss_dpred)
def nll_loss_dpred(dy, y_true, y_pred, dy_):
    """The operator is linear in its own dy, and ignores the values of y_pred."""
    at_one = op.nll_loss_dpred(op.ones_like(dy), y_true, y_pred)
    return op.sum(dy_ * at_one), None, op.zeros_like(y_pred)


@gradient(op.cross_entropy_dpred)
def cross_entropy_dpred(dy, y_true, y_pred, dy_):
    """Linear in its own dy; by y_pred it is the gradient of softmax, weighted by row."""
    at_one = op.cross_entropy_dpred(op.ones_like(dy), y_true, y_pred)
    weight = -op.sum(op.nll_loss_dpred(dy, y_true, y_pred), 1, 1)
    by_softmax = op.softmax_dx(op.softmax(y_pred, 1), dy_, 1)
    return op.sum(dy_ * at_one), None, weight * by_softmax


def _share(dy, y_pred, reduction):
    """Return dy over the number of elements that the reduction divides by."""
    counts = {"mean": y_pred.shape, "batchmean": y_pred.shape[:1]}
    size = prod(counts.get(reduction, ()))
    return dy / float(size) if size > 1 else dy


def _by_dy(dy_, at_one, reduction):
    """Return a derivative's gradient by its own dy, in which it is linear: ``at_one`` for dy 1."""
    product = dy_ * at_one
    return product if reduction == "none" else op.sum(product)


def _of_difference(loss, derivative, slope):
    """Register the gradients of a loss that is a function of y_pred - y_true, and of its own
    gradient. ``slope(y_true, y_pred, dy, *numbers)``: the second derivative times dy; None for 0.
    """

    @gradient(loss)
    def of_loss(y_true, y_pred, dy, *options):
        by_pred = derivative(dy, y_true, y_pred, *options)
        return -by_pred, by_pred

    @gradient(derivative)
    def of_derivative(dy, y_true, y_pred, dy_, reduction, *numbers):
        at_one = derivative(op.ones_like(dy), y_true, y_pred, reduction, *numbers)
        by_dy = _by_dy(dy_, at_one, reduction)
        if slope is None:
            return by_dy, op.zeros_like(y_true), op.zeros_like(y_pred)
        by_pred = slope(y_true, y_pred, dy_, *numbers) * _share(dy, y_pred, reduction)
        return by_dy, -by_pred, by_pred


def _inside(y_true, y_pred, dy, delta):
    return dy * op.cast(op.abs(y_pred - y_true) < delta, dy.dtype)


_of_difference(op.mse_loss, op.mse_loss_dpred, lambda y_true, y_pred, dy: dy * 2.0)
_of_difference(op.l1_loss, op.l1_loss_dpred, None)
_of_difference(op.huber_loss, op.huber_loss_dpred, _inside)


@gradient(op.kl_div)
def kl_div(y_true, y_pred, reduction, log_target, dy):
    by_pred = op.kl_div_dpred(dy, y_true, y_pred, reduction, log_target)
    share = _share(dy, y_pred, reduction)
    if log_target:
        slope = op.exp(y_true) * (y_true - y_pred + 1.0)
    else:
        slope = op.log(y_true) - y_pred + 1.0
    return slope * share, by_pred


@gradient(op.kl_div_dpred)
def kl_div_dpred(dy, y_true, y_pred, reduction, log_target, dy_):
    at_one = op.kl_div_dpred(op.ones_like(dy), y_true, y_pred, reduction, log_target)
    by_true = -(dy_ * _share(dy, y_pred, reduction))
    if log_target:
        by_true = by_true * op.exp(y_true)
    return _by_dy(dy_, at_one, reduction), by_true, op.zeros_like(y_pred)


@gradient(op.binary_cross_entropy)
def binary_cross_entropy(y_true, y_pred, reduction, dy):
    slope = op.log(1.0 - y_pred) - op.log(y_pred)
    by_true = slope * _share(dy, y_pred, reduction)
    return by_true, op.binary_cross_entropy_dpred(dy, y_true, y_pred, reduction)


@gradient(op.binary_cross_entropy_dpred)
def binary_cross_entropy_dpred(dy, y_true, y_pred, reduction, dy_):
    """With v = p * (1 - p): -1 / v by the target; (v - (p - t) * (1 - 2p)) / v**2 by p."""
    at_one = op.binary_cross_entropy_dpred(op.ones_like(dy), y_true, y_pred, reduction)
    variance = y_pred * (1.0 - y_pred)
    variance = op.maximum(variance, 1e-12)
    common = dy_ * _share(dy, y_pred, reduction) / variance
    bent = (y_pred - y_true) * (1.0 - y_pred * 2.0)
    by_pred = common * (1.0 - bent / variance)
    return _by_dy(dy_, at_one, reduction), -common, by_pred


@gradient(op.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(y_true, y_pred, reduction, dy):
    by_true = -(y_pred * _share(dy, y_pred, reduction))
    return by_true, op.binary_cross_entropy_with_logits_dpred(dy, y_true, y_pred, reduction)


@gradient(op.binary_cross_entropy_with_logits_dpred)
def binary_cross_entropy_with_logits_dpred(dy, y_true, y_pred, reduction, dy_):
    derivative = op.binary_cross_entropy_with_logits_dpred
    at_one = derivative(op.ones_like(dy), y_true, y_pred, reduction)
    shared = dy_ * _share(dy, y_pred, reduction)
    by_pred = op.sigmoid_dx(None, op.sigmoid(y_pred), shared)
    return _by_dy(dy_, at_one, reduction), -shared, by_pred


@gradient(op.ctc_losses)
def ctc_losses(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, dy):
    """See `ctc_losses_dx`."""
    dx = op.ctc_losses_dx(
        dy, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    return dx, None, None, None


not_differentiable(op.ctc_losses_dx, why="the gradient of a gradient is not implemented")
