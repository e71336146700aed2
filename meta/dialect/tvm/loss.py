"""Losses in TE.

A loss of elements is a function of two, prediction and target; its gradient is another one. A label
is clamped before it is an index, so no label reads outside the row; whether it counts is decided
separately.
"""

import math
from functools import partial

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import c_math
from meta.dialect.tvm.broadcast import computing, constant
from meta.dialect.tvm.compute import COMM_REDUCE, ELEMWISE, OPAQUE, compute
from meta.dialect.tvm.index import zeros
from meta.dialect.tvm.reduce import Over


def clamped(v, low, high):
    """Return v within bounds; a NaN stays one."""
    return tirx.Select(v > high, high, tirx.Select(v < low, low, v))


@compute(op.smooth_l1_loss, COMM_REDUCE)
def smooth_l1_loss(prediction, target):
    def element(p, t):
        half, one, size = constant(0.5, p), constant(1, p), te.abs(p - t)
        return tirx.Select(size < one, half * size * size, size - half)

    return loss(element, prediction, target, "mean")


@compute(op.smooth_l1_loss_dpred, ELEMWISE, static=True)
def smooth_l1_loss_dpred(prediction, target):
    """Return prediction - target within [-1, 1], divided by the number of elements."""
    wide = computing(str(prediction.dtype))
    low, high = tirx.const(-1.0, wide), tirx.const(1.0, wide)
    size = tirx.const(float(max(count(prediction.shape, "mean"), 1)), wide)

    def element(*i):
        difference = prediction(*i).astype(wide) - target(*i).astype(wide)
        return (clamped(difference, low, high) / size).astype(prediction.dtype)

    return te.compute(prediction.shape, element, name="clipped")


@compute(op.smooth_l1_loss_dtarget, ELEMWISE, static=True)
def smooth_l1_loss_dtarget(prediction, target):
    return smooth_l1_loss_dpred(target, prediction)


class Labels:
    """The labels of the rows of ``prediction``."""

    def __init__(self, prediction, target, classes=None):
        self.target, self.wide = target, computing(str(prediction.dtype))
        self.dtype, self.shape = prediction.dtype, prediction.shape
        self.rows, columns = self.shape
        self.classes = columns if classes is None else tirx.const(classes, columns.ty.dtype)
        self.one, self.zero = tirx.const(1.0, self.wide), tirx.const(0.0, self.wide)
        self.count = self.sum(lambda _: self.one, "count")

    def at(self, row):
        """Return the label as an int64."""
        return self.target(row).astype("int64")

    def valid(self, row):
        """Return whether the label is a class."""
        label = self.at(row)
        return tirx.all(label >= 0, label < tirx.Cast("int64", self.classes))

    def index(self, row):
        """Return the label, or the class nearest to it, in the dtype of an index."""
        last = tirx.Cast("int64", self.classes) - 1
        label = tirx.max(tirx.min(self.at(row), last), tirx.const(0, "int64"))
        return label.astype(str(self.classes.ty.dtype))

    def if_valid(self, row, value):
        """Return a value, or 0 for a row that does not count."""
        return tirx.Select(self.valid(row), value, self.zero)

    def sum(self, element, name):
        """Return the sum of ``element(row)`` over the rows that count."""
        row = te.reduce_axis((0, self.rows), name="row")
        return te.compute((), lambda: te.sum(self.if_valid(row, element(row)), axis=row), name=name)

    def mean(self, element, dtype):
        """Return the mean of ``element(row)`` over the rows that count."""
        total = self.sum(element, "total")
        return te.compute((), lambda: (total() / self.count()).astype(dtype), name="mean")

    def share(self, dy):
        """Return the array of dy / count for the rows that count, else 0."""

        def element(row):
            return self.if_valid(row, dy().astype(self.wide) * (self.one / self.count()))

        return te.compute((self.rows,), element, name="share")

    def hot(self, row, column):
        """Return 1 at the label of a row, else 0."""
        # Of int32, which GPUs compare in one instruction; -1 is no class.
        none = tirx.const(-1, "int32")
        label = tirx.Select(self.valid(row), self.at(row).astype("int32"), none)
        return tirx.Select(label == column.astype("int32"), self.one, self.zero)


@compute(op.nll_loss, COMM_REDUCE)
def nll_loss(prediction, target):
    labels = Labels(prediction, target)
    return labels.mean(
        lambda i: -prediction(i, labels.index(i)).astype(labels.wide), prediction.dtype
    )


@compute(op.nll_loss_dpred, OPAQUE)
def nll_loss_dpred(dy, prediction, target):
    labels = Labels(prediction, target)
    share = labels.share(dy)

    def element(i, j):
        return (-share(i) * labels.hot(i, j)).astype(prediction.dtype)

    return te.compute(prediction.shape, element, name="dpred")


@compute(op.nll_loss_dtarget, ELEMWISE, static=True)
def nll_loss_dtarget(out):
    return zeros(out.static_shape, out.dtype)


def _without_padding(prediction, classes):
    """Return scores of which those of other columns than the classes have no part in a softmax."""
    if classes is None:
        return prediction
    wide = computing(str(prediction.dtype))
    least = tirx.min_value(wide)

    def element(i, j):
        return tirx.Select(j < classes, prediction(i, j).astype(wide), least)

    return te.compute(prediction.shape, element, name="scores")


def _softmax(x):
    """Return the largest of each row, the logits of rows counted from it, and the sums of their
    exps.
    """
    over = Over.of(x, 1)
    source = over.element(x)
    largest = over.reduce(te.max, source, "largest")

    def logit(*i):
        return source(*i) - largest(i[0])

    return largest, logit, over.sum(lambda *i: te.exp(logit(*i)), "sum")


@compute(op.cross_entropy_train, COMM_REDUCE)
def cross_entropy_train(prediction, target, classes=None):
    labels = Labels(prediction, target, classes)
    largest, logit, total = _softmax(_without_padding(prediction, classes))

    def element(i):
        return te.log(total(i)) - logit(i, labels.index(i))

    return labels.mean(element, prediction.dtype), largest, total


@compute(op.cross_entropy, COMM_REDUCE)
def cross_entropy(prediction, target, classes=None):
    return cross_entropy_train(prediction, target, classes)[0]


@compute(op.cross_entropy_train_dpred, COMM_REDUCE)
def cross_entropy_train_dpred(dy, prediction, target, largest, total, classes=None):
    labels = Labels(prediction, target, classes)
    scores = _without_padding(prediction, classes)
    return _dpred(labels, dy, lambda i, j: scores(i, j).astype(labels.wide) - largest(i), total)


@compute(op.cross_entropy_dpred, COMM_REDUCE)
def cross_entropy_dpred(dy, prediction, target, classes=None):
    labels = Labels(prediction, target, classes)
    _, logit, total = _softmax(_without_padding(prediction, classes))
    return _dpred(labels, dy, logit, total)


def _dpred(labels, dy, logit, total):
    """Return the gradient of scores; ``logit``: the function from an index to one of them."""
    share = labels.share(dy)
    # One division for each row.
    inverse = te.compute(total.shape, lambda i: labels.one / total(i), name="inverse")

    def element(i, j):
        by_logit = te.exp(logit(i, j)) * inverse(i) - labels.hot(i, j)
        # Also where the scores are no numbers.
        return labels.if_valid(i, by_logit * share(i)).astype(labels.dtype)

    return te.compute(labels.shape, element, name="dpred")


compute(op.cross_entropy_dtarget, ELEMWISE, static=True)(nll_loss_dtarget)


def count(shape, reduction):
    """Return what the sum of the elements is divided by; None for a reduction without one."""
    extents = {"mean": shape, "batchmean": shape[:1]}.get(reduction)
    return None if extents is None else math.prod(int(extent) for extent in extents)


def loss(element, prediction, target, reduction):
    """Return ``element(prediction, target)``, reduced."""
    shape, dtype, wide = prediction.shape, str(prediction.dtype), computing(str(prediction.dtype))

    def at(*i):
        return element(prediction(*i).astype(wide), target(*i).astype(wide))

    if reduction == "none" or not shape:
        return te.compute(shape, lambda *i: at(*i).astype(dtype), name="loss")
    divisor = count(shape, reduction)
    if divisor == 0:
        return te.compute((), lambda: tirx.const(math.nan, dtype), name="loss")
    axes = [te.reduce_axis((0, extent)) for extent in shape]
    total = te.compute((), lambda: te.sum(at(*axes), axis=axes), name="total")
    over = tirx.const(float(divisor or 1), wide)
    return te.compute((), lambda: (total() / over).astype(dtype), name="loss")


def dpred(slope, dy, prediction, target, reduction):
    """Return ``slope(prediction, target)``, times dy over the count of the reduction."""
    shape, dtype, wide = prediction.shape, str(prediction.dtype), computing(str(prediction.dtype))
    over = tirx.const(float(count(shape, reduction) or 1), wide)

    def at(*i):
        share = (dy(*i) if reduction == "none" else dy()).astype(wide) / over
        return (slope(prediction(*i).astype(wide), target(*i).astype(wide)) * share).astype(dtype)

    return te.compute(shape, at, name="dpred")


def elements(base):
    """Register a loss of two elements, prediction and target, and attributes; a decorator."""

    def register(function):
        @compute(base, COMM_REDUCE)
        def kernel(prediction, target, reduction, **options):
            return loss(partial(function, **options), prediction, target, reduction)

        return function

    return register


def slopes(base):
    """Register the derivative of such a loss by the prediction; a decorator."""

    def register(function):
        @compute(base, ELEMWISE, static=True)
        def kernel(dy, prediction, target, reduction, **options):
            return dpred(partial(function, **options), dy, prediction, target, reduction)

        return function

    return register


@elements(op.mse_loss)
def mse_loss(p, t):
    return (p - t) * (p - t)


@slopes(op.mse_loss_dpred)
def mse_loss_dpred(p, t):
    return constant(2, p) * (p - t)


@elements(op.l1_loss)
def l1_loss(p, t):
    return te.abs(p - t)


@slopes(op.l1_loss_dpred)
def l1_loss_dpred(p, t):
    one, zero = constant(1, p), constant(0, p)
    return tirx.Select(p > t, one, zero) - tirx.Select(p < t, one, zero)


@elements(op.huber_loss)
def huber_loss(p, t, delta):
    d, half, edge = te.abs(p - t), constant(0.5, p), constant(delta, p)
    return tirx.Select(d <= edge, half * d * d, edge * (d - half * edge))


@slopes(op.huber_loss_dpred)
def huber_loss_dpred(p, t, delta):
    return clamped(p - t, constant(-delta, p), constant(delta, p))


@elements(op.kl_div)
def kl_div(p, t, log_target):
    if log_target:
        return te.exp(t) * (t - p)
    zero, one = constant(0, t), constant(1, t)
    # The logarithm of 1 stands for that of 0, which is multiplied by 0.
    return t * te.log(tirx.Select(t == zero, one, t)) - t * p


@slopes(op.kl_div_dpred)
def kl_div_dpred(_, t, log_target):
    return (te.exp(t) if log_target else t) * constant(-1, t)


@elements(op.binary_cross_entropy)
def binary_cross_entropy(p, t):
    def bounded_log(v):
        low, log = constant(-100, v), te.log(v)
        # 0 by itself: its logarithm is infinite, which a fast one may not say. A NaN stays.
        return tirx.Select(tirx.Or(v == constant(0, v), log < low), low, log)

    one = constant(1, p)
    return (t - one) * bounded_log(one - p) - t * bounded_log(p)


@slopes(op.binary_cross_entropy_dpred)
def binary_cross_entropy_dpred(p, t):
    variance, least = p * (constant(1, p) - p), constant(1e-12, p)
    return (p - t) / tirx.Select(variance < least, least, variance)


@elements(op.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(p, t):
    zero, one = constant(0, p), constant(1, p)
    below = tirx.Select(p < zero, zero - p, zero)
    return (one - t) * p + below + c_math.log1p(te.exp(zero - te.abs(p)))


@slopes(op.binary_cross_entropy_with_logits_dpred)
def binary_cross_entropy_with_logits_dpred(p, t):
    one = constant(1, p)
    return one / (one + te.exp(constant(0, p) - p)) - t
