"""Gradients of losses."""

from math import prod

from meta import op
from meta.grad.core import gradient, gradients, not_differentiable

gradients(
    {
        op.smooth_l1_loss: lambda prediction, target, dy: (
            dy * op.smooth_l1_loss_dpred(prediction, target),
            dy * op.smooth_l1_loss_dtarget(prediction, target),
        ),
        op.nll_loss: lambda prediction, target, dy: (
            op.nll_loss_dpred(dy, prediction, target),
            None,
        ),
        op.cross_entropy: lambda prediction, target, classes, dy: (
            op.cross_entropy_dpred(dy, prediction, target, classes),
            None,
        ),
    }
)
not_differentiable(
    op.nll_loss_dtarget,
    op.cross_entropy_dtarget,
    why="the result is zero whatever the arguments are",
)


@gradient(op.smooth_l1_loss_dpred)
def smooth_l1_loss_dpred(prediction, target, dy):
    """By prediction that of ``clip(prediction - target, -1, 1) / size``."""
    inside = op.abs(prediction - target) < 1.0
    by_pred = dy * op.astype(inside, dy.dtype) / max(prediction.size, 1)
    return by_pred, -by_pred


@gradient(op.smooth_l1_loss_dtarget)
def smooth_l1_loss_dtarget(prediction, target, dy):
    return smooth_l1_loss_dpred(prediction, target, dy)[::-1]


@gradient(op.nll_loss_dpred)
def nll_loss_dpred(dy, prediction, target, dy_):
    """The operator is linear in its own dy, and ignores the values of prediction."""
    at_one = op.nll_loss_dpred(op.ones_like(dy), prediction, target)
    return op.sum(dy_ * at_one), op.zeros_like(prediction), None


@gradient(op.cross_entropy_dpred)
def cross_entropy_dpred(dy, prediction, target, classes, dy_):
    """Linear in its own dy; by prediction it is the gradient of softmax, weighted by row."""
    at_one = op.cross_entropy_dpred(op.ones_like(dy), prediction, target, classes)
    by_dy, padding = op.sum(dy_ * at_one), None
    if classes is not None:
        padding = prediction.shape[1] - classes
        first = (0, 0), (prediction.shape[0], classes)
        prediction, dy_ = (op.strided_slice(x, *first) for x in (prediction, dy_))
    weight = -op.sum(op.nll_loss_dpred(dy, prediction, target), 1, 1)
    by_pred = weight * op.softmax_dx(op.softmax(prediction, 1), dy_, 1)
    return by_dy, op.pad(by_pred, ((0, 0), (0, padding))) if padding else by_pred, None


@gradient(op.cross_entropy_train)
def cross_entropy_train(prediction, target, y, dy, classes):
    """Of the results only the loss is differentiated; the statistics serve this rule."""
    _, largest, total = y
    dx = op.cross_entropy_train_dpred(dy[0], prediction, target, largest, total, classes)
    return dx, None


@gradient(op.cross_entropy_train_dpred)
def cross_entropy_train_dpred(dy, prediction, target, largest, total, dy_, classes):
    """By prediction with all that passes through the statistics, which are functions of it."""
    by_dy, by_pred, _ = cross_entropy_dpred(dy, prediction, target, classes, dy_)
    return by_dy, by_pred, None, op.zeros_like(largest), op.zeros_like(total)


def _share(dy, prediction, reduction):
    """Return dy over the number of elements that the reduction divides by."""
    counts = {"mean": prediction.shape, "batchmean": prediction.shape[:1]}
    size = prod(counts.get(reduction, ()))
    return dy / float(size) if size > 1 else dy


def _by_dy(dy_, at_one, reduction):
    """Return a derivative's gradient by its own dy, in which it is linear: ``at_one`` for dy 1."""
    product = dy_ * at_one
    return product if reduction == "none" else op.sum(product)


def _of_difference(loss, derivative, slope):
    """Register the gradients of a loss that is a function of prediction - target, and of its own
    gradient. ``slope(prediction, target, dy, *numbers)``: the second derivative times dy; None
    for 0.
    """

    @gradient(loss)
    def of_loss(prediction, target, dy, *options):
        by_pred = derivative(dy, prediction, target, *options)
        return by_pred, -by_pred

    @gradient(derivative)
    def of_derivative(dy, prediction, target, dy_, reduction, *numbers):
        at_one = derivative(op.ones_like(dy), prediction, target, reduction, *numbers)
        by_dy = _by_dy(dy_, at_one, reduction)
        if slope is None:
            return by_dy, op.zeros_like(prediction), op.zeros_like(target)
        by_pred = slope(prediction, target, dy_, *numbers) * _share(dy, prediction, reduction)
        return by_dy, by_pred, -by_pred


def _inside(prediction, target, dy, delta):
    return dy * op.astype(op.abs(prediction - target) < delta, dy.dtype)


_of_difference(op.mse_loss, op.mse_loss_dpred, lambda prediction, target, dy: dy * 2.0)
_of_difference(op.l1_loss, op.l1_loss_dpred, None)
_of_difference(op.huber_loss, op.huber_loss_dpred, _inside)


@gradient(op.kl_div)
def kl_div(prediction, target, reduction, log_target, dy):
    by_pred = op.kl_div_dpred(dy, prediction, target, reduction, log_target)
    share = _share(dy, prediction, reduction)
    if log_target:
        slope = op.exp(target) * (target - prediction + 1.0)
    else:
        slope = op.log(target) - prediction + 1.0
    return by_pred, slope * share


@gradient(op.kl_div_dpred)
def kl_div_dpred(dy, prediction, target, reduction, log_target, dy_):
    at_one = op.kl_div_dpred(op.ones_like(dy), prediction, target, reduction, log_target)
    by_target = -(dy_ * _share(dy, prediction, reduction))
    if log_target:
        by_target = by_target * op.exp(target)
    return _by_dy(dy_, at_one, reduction), op.zeros_like(prediction), by_target


@gradient(op.binary_cross_entropy)
def binary_cross_entropy(prediction, target, reduction, dy):
    # The logarithms are those of the loss, which has bounds.
    logs = op.log1p(-prediction), op.log(prediction)
    slope = op.maximum(logs[0], -100.0) - op.maximum(logs[1], -100.0)
    by_target = slope * _share(dy, prediction, reduction)
    return op.binary_cross_entropy_dpred(dy, prediction, target, reduction), by_target


@gradient(op.binary_cross_entropy_dpred)
def binary_cross_entropy_dpred(dy, prediction, target, reduction, dy_):
    """With v = p * (1 - p): -1 / v by the target; (v - (p - t) * (1 - 2p)) / v**2 by p."""
    at_one = op.binary_cross_entropy_dpred(op.ones_like(dy), prediction, target, reduction)
    variance = prediction * (1.0 - prediction)
    variance = op.maximum(variance, 1e-12)
    common = dy_ * _share(dy, prediction, reduction) / variance
    bent = (prediction - target) * (1.0 - prediction * 2.0)
    by_pred = common * (1.0 - bent / variance)
    return _by_dy(dy_, at_one, reduction), by_pred, -common


@gradient(op.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(prediction, target, reduction, dy):
    by_target = -(prediction * _share(dy, prediction, reduction))
    return op.binary_cross_entropy_with_logits_dpred(dy, prediction, target, reduction), by_target


@gradient(op.binary_cross_entropy_with_logits_dpred)
def binary_cross_entropy_with_logits_dpred(dy, prediction, target, reduction, dy_):
    derivative = op.binary_cross_entropy_with_logits_dpred
    at_one = derivative(op.ones_like(dy), prediction, target, reduction)
    shared = dy_ * _share(dy, prediction, reduction)
    by_pred = op.sigmoid_dx(None, op.sigmoid(prediction), shared)
    return _by_dy(dy_, at_one, reduction), by_pred, -shared


@gradient(op.ctc_losses)
def ctc_losses(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, dy):
    """See `ctc_losses_dx`."""
    dx = op.ctc_losses_dx(
        dy, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    return dx, None, None, None


not_differentiable(
    op.ctc_losses_dx, why="the gradient of a gradient is not implemented", missing=True
)
