"""Losses and their gradients; distances are in `distance.py`."""

from math import prod

from meta import op
from meta.base.dtype import is_float
from meta.frontend.aten.promotion import cast, promoted
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.grad.core import pullback
from meta.op.core.function import device_of
from meta.op.loss import IGNORED
from meta.runtime.ndarray import array

REDUCTIONS = ("none", "mean", "sum")
"""By torch's numbers of them."""


# Of class labels.


def _axis(x):
    return 1 if len(x.shape) > 1 else 0


def _counts(target, ignore_index):
    return op.not_equal(target, ignore_index)


def _shares(x, target, weight, ignore_index):
    """Return the weight of each label: 0 of those that do not count."""
    counts = _counts(target, ignore_index)
    if weight is None:
        return cast(counts, x.dtype)
    return op.where(counts, op.take(weight, op.where(counts, target, 0)), 0.0)


@aten("nll_loss_forward", "nll_loss2d_forward", op.nll_loss)
def nll_loss_forward(x, target, weight, *, reduction, ignore_index):
    """The loss, and the sum of weights: 0 where nothing is divided by it."""
    kind = REDUCTIONS[reduction]
    y = op.nll_loss(x, _labels(target, x), weight, ignore_index=ignore_index, reduction=kind)
    if kind == "none" and len(x.shape) > 1:
        return y, op.zeros((), x.dtype, device_of(x))
    return y, cast(op.sum(_shares(x, target, weight, ignore_index)), x.dtype)


def _labels(target, x):
    """Return labels, one without axes for a vector of scores."""
    return op.reshape(target, ()) if len(x.shape) == 1 and len(target.shape) else target


@aten("nll_loss_backward", "nll_loss2d_backward", op.nll_loss_dpred)
def nll_loss_backward(dy, x, target, weight, total, *, reduction, ignore_index):
    usual = weight is None and ignore_index == IGNORED and len(x.shape) == 2
    if usual and REDUCTIONS[reduction] == "mean":
        return op.nll_loss_dpred(dy, x, target)
    target, axis = _labels(target, x), _axis(x)
    if REDUCTIONS[reduction] == "mean":
        dy = op.divide(dy, total)
    share = op.multiply(dy, _shares(x, target, weight, ignore_index))
    classes = op.arange(0, x.shape[axis], 1, target.dtype, device_of(x))
    classes = op.reshape(classes, (-1, *(1,) * (len(x.shape) - 1 - axis)))
    own = op.equal(op.expand_dims(target, axis), classes)
    return op.where(own, op.negative(op.expand_dims(share, axis)), 0.0)


@aten("nll_loss", "nll_loss2d", "nll_loss_nd", op.nll_loss)
def nll_loss(x, target, weight, *, reduction, ignore_index):
    kind = REDUCTIONS[reduction]
    return op.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=kind)


@aten("cross_entropy_loss", op.cross_entropy)
def cross_entropy_loss(x, target, weight, *, reduction, ignore_index, label_smoothing):
    kind = REDUCTIONS[reduction]
    if is_float(target.dtype):
        ignore_index = IGNORED
    return op.cross_entropy(
        x,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=kind,
        label_smoothing=label_smoothing,
    )


@aten("multi_margin_loss", op.multi_margin_loss)
def multi_margin_loss(x, target, weight, *, p, margin, reduction):
    return op.multi_margin_loss(x, target, p, margin, weight, REDUCTIONS[reduction])


@aten("multi_margin_loss_backward")
def multi_margin_loss_backward(dy, x, target, p, margin, weight, *, reduction):
    options = (target, p, margin, weight, REDUCTIONS[reduction])
    return pullback(lambda x: op.multi_margin_loss(x, *options), (x,), dy)[0]


@aten("multilabel_margin_loss", op.multilabel_margin_loss)
def multilabel_margin_loss(x, target, *, reduction):
    return op.multilabel_margin_loss(x, target, REDUCTIONS[reduction])


@aten("multilabel_margin_loss_forward", op.multilabel_margin_loss)
def multilabel_margin_loss_forward(x, target, *, reduction):
    """The loss, and which classes are labels, which end at the first -1."""
    y = op.multilabel_margin_loss(x, target, REDUCTIONS[reduction])
    axis = len(x.shape) - 1
    labels = target if len(target.shape) else op.reshape(target, (1,))
    ended = op.greater(op.cumsum(cast(op.equal(labels, -1), "int64"), -1), 0)
    labels = op.where(ended, -1, labels)
    count = labels.shape[-1]
    classes = op.arange(0, count, 1, labels.dtype, device_of(x))
    hot = op.any(op.equal(op.expand_dims(labels, -1), classes), max(axis, 0))
    return y, op.reshape(cast(hot, x.dtype), tuple(target.shape))


@aten("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(dy, x, target, _is_target, *, reduction):
    kind = REDUCTIONS[reduction]
    return pullback(lambda x: op.multilabel_margin_loss(x, target, kind), (x,), dy)[0]


@aten("ctc_loss.IntList", op.ctc_loss)
def ctc_loss_of_ints(
    log_probs,
    targets,
    *,
    input_lengths,
    target_lengths,
    blank,
    reduction,
    zero_infinity,
    call,
):
    lengths = (array(list(n), "int64", device=call.device) for n in (input_lengths, target_lengths))
    return op.ctc_loss(log_probs, targets, *lengths, blank, REDUCTIONS[reduction], zero_infinity)


@aten("ctc_loss.Tensor", op.ctc_loss)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, *, blank, reduction, zero_infinity):
    options = (blank, REDUCTIONS[reduction], zero_infinity)
    return op.ctc_loss(log_probs, targets, input_lengths, target_lengths, *options)


aten.refuse(
    "_ctc_loss",
    "_ctc_loss.Tensor",
    "_ctc_loss_backward",
    "_ctc_loss_backward.Tensor",
    "_cudnn_ctc_loss",
    "_cudnn_ctc_loss.Tensor",
    why="it saves the probabilities of all alignments, which are not computed here",
)


# Of elements.


def _pair(x, target):
    """Return both in one dtype and shape."""
    x, target = promoted(x, target)
    return op.broadcast_arrays(x, target)


def _along(dy, x, kind):
    """Return the gradient of a loss in its type."""
    shape = tuple(x.shape) if kind == "none" else ()
    dy = op.reshape(dy, ()) if not shape and len(dy.shape) else op.broadcast_to(dy, shape)
    return cast(dy, x.dtype)


@aten("mse_loss", op.mse_loss)
def mse_loss(x, target, *, reduction):
    return op.mse_loss(*_pair(x, target), REDUCTIONS[reduction])


@aten("mse_loss_backward", op.mse_loss_dpred)
def mse_loss_backward(dy, x, target, *, reduction):
    (x, target), kind = _pair(x, target), REDUCTIONS[reduction]
    return op.mse_loss_dpred(_along(dy, x, kind), x, target, kind)


@aten("l1_loss", op.l1_loss)
def l1_loss(x, target, *, reduction):
    return op.l1_loss(*_pair(x, target), REDUCTIONS[reduction])


@aten("smooth_l1_loss", op.smooth_l1_loss)
def smooth_l1_loss(x, target, *, reduction, beta):
    return op.smooth_l1_loss(*_pair(x, target), REDUCTIONS[reduction], beta)


@aten("smooth_l1_loss_backward", op.smooth_l1_loss_dpred, op.huber_loss_dpred)
def smooth_l1_loss_backward(dy, x, target, *, reduction, beta):
    (x, target), kind = _pair(x, target), REDUCTIONS[reduction]
    dy = _along(dy, x, kind)
    if beta == 1 and kind == "mean":
        return op.multiply(dy, op.smooth_l1_loss_dpred(x, target))
    if beta == 0:
        raise Unconvertible("its gradient has no value at a difference of 0")
    dx = op.huber_loss_dpred(dy, x, target, kind, beta)
    return dx if beta == 1 else op.divide(dx, beta)


@aten("huber_loss", op.huber_loss)
def huber_loss(x, target, *, reduction, delta):
    return op.huber_loss(*_pair(x, target), REDUCTIONS[reduction], delta)


@aten("huber_loss_backward", op.huber_loss_dpred)
def huber_loss_backward(dy, x, target, *, reduction, delta):
    (x, target), kind = _pair(x, target), REDUCTIONS[reduction]
    return op.huber_loss_dpred(_along(dy, x, kind), x, target, kind, delta)


@aten("binary_cross_entropy", op.binary_cross_entropy)
def binary_cross_entropy(x, target, weight, *, reduction):
    return op.binary_cross_entropy(x, target, REDUCTIONS[reduction], weight=weight)


@aten("binary_cross_entropy_backward", op.binary_cross_entropy_dpred)
def binary_cross_entropy_backward(dy, x, target, weight, *, reduction):
    kind = REDUCTIONS[reduction]
    dx = op.binary_cross_entropy_dpred(_along(dy, x, kind), x, target, kind)
    return dx if weight is None else op.multiply(dx, cast(weight, dx.dtype))


@aten("binary_cross_entropy_with_logits", op.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(x, target, weight, pos_weight, *, reduction):
    kind = REDUCTIONS[reduction]
    x, target = _pair(x, target)
    return op.binary_cross_entropy_with_logits(
        x, target, kind, weight=weight, pos_weight=pos_weight
    )


@aten("kl_div", op.kl_div)
def kl_div(x, target, *, reduction, log_target):
    return op.kl_div(*_pair(x, target), REDUCTIONS[reduction], log_target)


@aten("soft_margin_loss", op.soft_margin_loss)
def soft_margin_loss(x, target, *, reduction):
    return op.soft_margin_loss(x, target, REDUCTIONS[reduction])


@aten("soft_margin_loss_backward", op.sigmoid)
def soft_margin_loss_backward(dy, x, target, *, reduction):
    """-target * sigmoid(-target * x) * dy, over the size for the mean."""
    target = cast(target, x.dtype)
    dx = op.multiply(target, op.sigmoid(op.negative(op.multiply(target, x))))
    dx = op.negative(op.multiply(dx, dy))
    return op.divide(dx, prod(x.shape)) if REDUCTIONS[reduction] == "mean" else dx


@aten("hinge_embedding_loss", op.hinge_embedding_loss)
def hinge_embedding_loss(x, target, *, margin, reduction):
    return op.hinge_embedding_loss(x, target, margin, REDUCTIONS[reduction])


@aten("margin_ranking_loss", op.margin_ranking_loss)
def margin_ranking_loss(x1, x2, target, *, margin, reduction):
    return op.margin_ranking_loss(x1, x2, target, margin, REDUCTIONS[reduction])


@aten("cosine_embedding_loss", op.cosine_embedding_loss)
def cosine_embedding_loss(x1, x2, target, *, margin, reduction):
    return op.cosine_embedding_loss(x1, x2, target, margin, REDUCTIONS[reduction])


@aten("triplet_margin_loss", op.triplet_margin_loss)
def triplet_margin_loss(anchor, positive, negative, *, margin, p, eps, swap, reduction):
    options = (margin, p, eps, swap, REDUCTIONS[reduction])
    return op.triplet_margin_loss(anchor, positive, negative, *options)


@aten("poisson_nll_loss", op.poisson_nll_loss)
def poisson_nll_loss(x, target, *, log_input, full, eps, reduction):
    return op.poisson_nll_loss(x, target, log_input, full, eps, REDUCTIONS[reduction])
