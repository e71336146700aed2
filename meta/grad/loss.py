"""Gradients of losses, and of their derivatives, so that a loss may be differentiated twice."""

from meta import op
from meta.grad.core import gradient, not_differentiable


@gradient(op.smooth_l1_loss)
def smooth_l1_loss(y_true, y_pred, dy):
    return (
        op.multiply(dy, op.smooth_l1_loss_dtrue(y_true, y_pred)),
        op.multiply(dy, op.smooth_l1_loss_dpred(y_true, y_pred)),
    )


def _clipped(y_true, y_pred, dy):
    """Return the gradient of ``clip(y_pred - y_true, -1, 1) / size`` by y_pred."""
    inside = op.less(op.abs(op.subtract(y_pred, y_true)), 1.0)
    return op.divide(op.multiply(dy, op.cast(inside, dy.dtype)), max(y_pred.size, 1))


@gradient(op.smooth_l1_loss_dpred)
def smooth_l1_loss_dpred(y_true, y_pred, dy):
    by_pred = _clipped(y_true, y_pred, dy)
    return op.negative(by_pred), by_pred


@gradient(op.smooth_l1_loss_dtrue)
def smooth_l1_loss_dtrue(y_true, y_pred, dy):
    by_pred = _clipped(y_true, y_pred, dy)
    return by_pred, op.negative(by_pred)


@gradient(op.nll_loss)
def nll_loss(y_true, y_pred, dy):
    return None, op.nll_loss_dpred(dy, y_true, y_pred)


@gradient(op.nll_loss_dpred)
def nll_loss_dpred(dy, y_true, y_pred, dy_):
    """The operator is linear in its own dy, and ignores the values of y_pred."""
    at_one = op.nll_loss_dpred(op.ones_like(dy), y_true, y_pred)
    return op.sum(op.multiply(dy_, at_one)), None, op.zeros_like(y_pred)


not_differentiable(op.nll_loss_dtrue, why="the result is zero whatever the arguments are")


@gradient(op.cross_entropy)
def cross_entropy(y_true, y_pred, dy):
    return None, op.cross_entropy_dpred(dy, y_true, y_pred)


@gradient(op.cross_entropy_dpred)
def cross_entropy_dpred(dy, y_true, y_pred, dy_):
    """Linear in its own dy; by y_pred it is the gradient of softmax, weighted by row."""
    at_one = op.cross_entropy_dpred(op.ones_like(dy), y_true, y_pred)
    weight = op.negative(op.sum(op.nll_loss_dpred(dy, y_true, y_pred), 1, 1))
    by_softmax = op.softmax_dx(op.softmax(y_pred, 1), dy_, 1)
    return op.sum(op.multiply(dy_, at_one)), None, op.multiply(weight, by_softmax)


not_differentiable(op.cross_entropy_dtrue, why="the result is zero whatever the arguments are")
