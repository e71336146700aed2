"""Losses and their gradients; distances are in `distance.py`."""

from math import prod

import torch

from meta import op
from meta.base.dtype import FROM_TORCH, TO_TORCH, is_float
from meta.frontend.aten.arguments import cast, promote
from meta.frontend.aten.cross_entropy import REDUCTIONS
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.grad.core import pullback
from meta.op.core import Op
from meta.op.core.function import device_of
from meta.op.loss import IGNORED
from meta.op.loss_reduction import class_indices, in_compute_dtype
from meta.runtime.ndarray import array

NO_CLASS = -1


def _pair(x, target):
    """Return both in one dtype and shape."""
    return op.broadcast_arrays(*promote(x, target))


PAIRS = (op.huber_loss, op.kl_div, op.l1_loss, op.mse_loss, op.smooth_l1_loss)
"""Losses of each element of two tensors, which are broadcast."""
WEIGHTED = (op.binary_cross_entropy, op.multi_margin_loss, op.nll_loss)
"""Losses whose last operand is a weight."""
OTHERS = (
    *(op.cosine_embedding_loss, op.hinge_embedding_loss, op.margin_ranking_loss),
    *(op.multilabel_margin_loss, op.poisson_nll_loss, op.soft_margin_loss, op.triplet_margin_loss),
)


def loss(base):
    """Return the converter of a loss, whose reduction torch has by number."""

    def converted(*operands, reduction, **options):
        options["reduction"] = REDUCTIONS[reduction]
        if base in WEIGHTED:
            *operands, options["weight"] = operands
        return base(*(_pair(*operands) if base in PAIRS else operands), **options)

    return converted


for _base in (*PAIRS, *WEIGHTED, *OTHERS):
    _name = _base.name if isinstance(_base, Op) else _base.__name__
    _forms = ("nll_loss2d", "nll_loss_nd") if _name == "nll_loss" else ()
    aten(_name, *_forms, _base)(loss(_base))


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


# The cross entropy of labels as one operator, see `meta.frontend.aten.cross_entropy`.


def _by_rows(x, target, dim):
    """Return scores as (n, c), and labels as (n,); with axes behind the classes, as (n, c, m) and
    (n, m).
    """
    shape = tuple(x.shape)
    outer, inner = prod(shape[:dim]), prod(shape[dim + 1 :])
    target = cast(target, "int64")
    more = () if type(inner) is int and inner == 1 else (inner,)
    return op.reshape(x, (outer, shape[dim], *more)), op.reshape(target, (outer, *more))


def _computing(x, dtype):
    """Return the dtype that scores are cast to."""
    return FROM_TORCH[torch.promote_types(TO_TORCH[x.dtype], TO_TORCH[dtype])]


def _counted(x, target, ignore_index, classes=None):
    """Return which labels are classes that count."""
    count = x.shape[1] if classes is None else classes
    inside = op.logical_and(op.greater_equal(target, 0), op.less(target, count))
    return op.logical_and(inside, op.not_equal(target, ignore_index))


def _of_classes(x, classes):
    """Return scores without those that are padding."""
    if classes is None:
        return x
    return op.strided_slice(x, (0,) * len(x.shape), (x.shape[0], classes, *x.shape[2:]))


def _marked(target, ignore_index):
    """Return labels of which those that do not count are `IGNORED`, as the base operators have it;
    where that is a label like others, it is no class.
    """
    if ignore_index == IGNORED:
        return target
    others = op.where(op.equal(target, IGNORED), NO_CLASS, target)
    return op.where(op.equal(target, ignore_index), IGNORED, others)


def _weights(x, target, weight, counted):
    """Return the weight of each label, 0 of those that do not count."""
    if weight is None:
        return cast(counted, x.dtype)
    label = op.where(counted, target, 0)
    return op.where(counted, op.take(cast(weight, x.dtype), label), 0.0)


@aten("meta.cross_entropy", op.cross_entropy_train)
def cross_entropy(x, target, weight, *, dim, reduction, ignore_index, dtype, classes):
    computing, kind, shape = _computing(x, dtype), REDUCTIONS[reduction], tuple(target.shape)
    x, target = _by_rows(cast(x, computing), target, dim)
    counted = _counted(x, target, ignore_index, classes)
    if weight is None and kind != "none" and len(x.shape) == 2:
        labels = _marked(target, ignore_index)
        y, largest, total = op.cross_entropy_train(x, labels, classes)
        if kind == "sum":
            count = op.sum(cast(counted, computing))
            y = op.where(op.greater(count, 0.0), op.multiply(y, count), 0.0)
        return cast(y, dtype), largest, total
    x = in_compute_dtype(_of_classes(x, classes))
    largest = op.max(x, 1, True)
    total = op.sum(op.exp(op.subtract(x, largest)), 1)
    labels = class_indices(op.where(op.equal(target, ignore_index), 0, target), x.shape[1])
    own = op.take_along_axis(x, op.expand_dims(labels, 1), 1)
    own, largest = (op.squeeze(v, 1) for v in (own, largest))
    loss = op.subtract(op.log(total), op.subtract(own, largest))
    share = _weights(x, target, weight, counted)
    loss = op.where(counted, op.multiply(loss, share), 0.0)
    if kind == "none":
        loss = op.reshape(loss, shape)
    else:
        loss = op.sum(loss)
    return cast(op.divide(loss, op.sum(share)) if kind == "mean" else loss, dtype), largest, total


@aten("meta.cross_entropy_backward", op.cross_entropy_train_dpred)
def cross_entropy_backward(
    dy, x, target, largest, total, weight, *, dim, reduction, ignore_index, dtype, classes
):
    """The base operator's, or ``(softmax(x) - hot) * share``, with ``share`` what the loss of a
    label counts in the result.
    """
    given, computing, kind = x, _computing(x, dtype), REDUCTIONS[reduction]
    count = x.shape[dim] if classes is None else classes
    shape = (*given.shape[:dim], count, *given.shape[dim + 1 :])
    x, target = _by_rows(cast(x, computing), target, dim)
    counted = _counted(x, target, ignore_index, classes)
    if weight is None and kind != "none" and len(x.shape) == 2:
        dy = cast(dy, computing)
        if kind == "sum":
            dy = op.multiply(dy, op.sum(cast(counted, computing)))
        labels = _marked(target, ignore_index)
        dx = op.cross_entropy_train_dpred(dy, x, labels, largest, total, classes)
        return op.reshape(_of_classes(cast(dx, given.dtype), classes), shape)
    x = in_compute_dtype(_of_classes(x, classes))
    share, dy = _weights(x, target, weight, counted), cast(dy, x.dtype)
    if kind == "none":
        dy = op.reshape(dy, tuple(target.shape))
    elif kind == "mean":
        dy = op.divide(dy, op.sum(share))
    share = op.where(counted, op.multiply(share, dy), 0.0)
    numbers = op.arange(0, x.shape[1], 1, target.dtype, device_of(x))
    numbers = op.reshape(numbers, (-1, *(1,) * (len(x.shape) - 2)))
    target, largest, total, share = (op.expand_dims(v, 1) for v in (target, largest, total, share))
    p = op.multiply(op.exp(op.subtract(x, largest)), op.divide(1.0, total))
    dx = op.multiply(op.where(op.equal(target, numbers), op.subtract(p, 1.0), p), share)
    return op.reshape(cast(dx, given.dtype), shape)


@aten("multi_margin_loss_backward")
def multi_margin_loss_backward(dy, x, target, p, margin, weight, *, reduction):
    options = (target, p, margin, weight, REDUCTIONS[reduction])
    return pullback(lambda x: op.multi_margin_loss(x, *options), (x,), dy)[0]


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


def _along(dy, x, kind):
    """Return the gradient of a loss in its type."""
    shape = tuple(x.shape) if kind == "none" else ()
    dy = op.reshape(dy, ()) if not shape and len(dy.shape) else op.broadcast_to(dy, shape)
    return cast(dy, x.dtype)


@aten("mse_loss_backward", op.mse_loss_dpred)
def mse_loss_backward(dy, x, target, *, reduction):
    (x, target), kind = _pair(x, target), REDUCTIONS[reduction]
    return op.mse_loss_dpred(_along(dy, x, kind), x, target, kind)


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


@aten("huber_loss_backward", op.huber_loss_dpred)
def huber_loss_backward(dy, x, target, *, reduction, delta):
    (x, target), kind = _pair(x, target), REDUCTIONS[reduction]
    return op.huber_loss_dpred(_along(dy, x, kind), x, target, kind, delta)


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


@aten("soft_margin_loss_backward", op.sigmoid)
def soft_margin_loss_backward(dy, x, target, *, reduction):
    """-target * sigmoid(-target * x) * dy, over the size for the mean."""
    target = cast(target, x.dtype)
    dx = op.multiply(target, op.sigmoid(op.negative(op.multiply(target, x))))
    dx = op.negative(op.multiply(dx, dy))
    return op.divide(dx, prod(x.shape)) if REDUCTIONS[reduction] == "mean" else dx
