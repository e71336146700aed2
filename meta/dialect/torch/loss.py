"""Losses on ATen.

Their gradients are those of ATen, asked for by its own operators.
"""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels, widened
from meta.op.loss import IGNORED


@dialect.kernel(op.smooth_l1_loss)
def smooth_l1_loss(y_true, y_pred):
    return F.smooth_l1_loss(widened(y_pred), widened(y_true)).to(y_pred.dtype)


def _clipped(y, other):
    """Return the difference within [-1, 1], divided by the number of elements."""
    difference = widened(y) - widened(other)
    return difference.clamp_(-1, 1).div_(max(difference.numel(), 1)).to(y.dtype).contiguous()


kernels(
    {
        op.smooth_l1_loss_dpred: lambda y_true, y_pred: _clipped(y_pred, y_true),
        op.smooth_l1_loss_dtrue: lambda y_true, y_pred: _clipped(y_true, y_pred),
    }
)


def labels(y_true, y_pred):
    """Return the labels as ATen wants them, whatever is no class replaced by `IGNORED`; another one
    would stop the process.
    """
    y_true = y_true.long()
    return y_true.masked_fill((y_true < 0) | (y_true >= y_pred.shape[1]), IGNORED)


@dialect.kernel(op.nll_loss)
def nll_loss(y_true, y_pred):
    return F.nll_loss(widened(y_pred), labels(y_true, y_pred)).to(y_pred.dtype)


def at_labels(dy, y_true, y_pred):
    """Return dy / count at the label of every row that counts, 0 elsewhere; and the same by row."""
    y_true = labels(y_true, y_pred)
    counts = y_true != IGNORED
    share = torch.where(counts, widened(dy) / counts.sum(), 0)
    zeros = torch.zeros(y_pred.shape, dtype=share.dtype, device=share.device)
    return zeros.scatter_(1, y_true.clamp(min=0)[:, None], share[:, None]), share


@dialect.kernel(op.nll_loss_dpred)
def nll_loss_dpred(dy, y_true, y_pred):
    hot, _ = at_labels(dy, y_true, y_pred)
    return hot.neg_().to(y_pred.dtype)


@dialect.kernel(op.cross_entropy)
def cross_entropy(y_true, y_pred):
    return F.cross_entropy(widened(y_pred), labels(y_true, y_pred)).to(y_pred.dtype)


@dialect.kernel(op.cross_entropy_dpred)
def cross_entropy_dpred(dy, y_true, y_pred):
    hot, share = at_labels(dy, y_true, y_pred)
    softmax = torch.softmax(widened(y_pred), 1)
    return softmax.mul_(share[:, None]).sub_(hot).to(y_pred.dtype)


@dialect.kernel(op.nll_loss_dtrue)
@dialect.kernel(op.cross_entropy_dtrue)
def no_gradient_of_labels(out):
    out.zero_()


_CODES = {"none": 0, "mean": 1, "sum": 2}
"""ATen's numbers of the reductions."""


def register(loss, loss_dpred, forward, backward):
    """Register a loss and its gradient: ``forward(y_pred, y_true, *attributes)``, and the same with
    dy before them.
    """

    def kernel(y_true, y_pred, **attributes):
        return forward(widened(y_pred), widened(y_true), **attributes).to(y_pred.dtype)

    def gradient_kernel(dy, y_true, y_pred, **attributes):
        found = backward(*widened(dy, y_pred, y_true), **attributes)
        return found.to(y_pred.dtype).contiguous()

    for base, function in ((loss, kernel), (loss_dpred, gradient_kernel)):
        function.__signature__ = base.schema.signature
        dialect.kernel(base)(function)


def scaled(dy, y_pred, reduction):
    """Return dy, divided by the number of elements for "mean"."""
    return dy / max(y_pred.numel(), 1) if reduction == "mean" else dy


def mse_dpred(dy, y_pred, y_true, reduction):
    return torch.ops.aten.mse_loss_backward(dy, y_pred, y_true, _CODES[reduction])


def l1_dpred(dy, y_pred, y_true, reduction):
    return torch.sign(y_pred - y_true).mul_(scaled(dy, y_pred, reduction))


def probability(y_pred, y_true, reduction):
    """The loss as `op.binary_cross_entropy` states it: ATen refuses what is no probability."""
    outside = (y_pred < 0) | (y_pred > 1)
    if outside.any():
        y_pred = y_pred.masked_fill(outside, torch.nan)
    logs = y_pred.log().clamp_(min=-100), (-y_pred).log1p_().clamp_(min=-100)
    elements = (y_true - 1) * logs[1] - y_true * logs[0]
    return elements if reduction == "none" else getattr(elements, reduction)()


def probability_dpred(dy, y_pred, y_true, reduction):
    slope = (y_pred - y_true) / (y_pred * (1 - y_pred)).clamp_(min=1e-12)
    return slope.mul_(scaled(dy, y_pred, reduction))


def logits_dpred(dy, y_pred, y_true, reduction):
    return torch.sigmoid(y_pred).sub_(y_true).mul_(scaled(dy, y_pred, reduction))


def huber_dpred(dy, y_pred, y_true, reduction, delta):
    slope = (y_pred - y_true).clamp_(-delta, delta)
    return slope.mul_(scaled(dy, y_pred, reduction))


def kl_div(y_pred, y_true, reduction, log_target):
    element = "sum" if reduction == "batchmean" else reduction
    # F.kl_div of mean warns about batchmean, and is ATen's operator otherwise.
    found = torch.kl_div(y_pred, y_true, _CODES[element], log_target=log_target)
    return found / y_pred.shape[0] if reduction == "batchmean" else found


def kl_div_dpred(dy, y_pred, y_true, reduction, log_target):
    weight = y_true.exp() if log_target else y_true
    if reduction == "batchmean":
        return -weight * (dy / max(y_pred.shape[0], 1))
    return -weight * scaled(dy, y_pred, reduction)


register(op.mse_loss, op.mse_loss_dpred, F.mse_loss, mse_dpred)
register(op.l1_loss, op.l1_loss_dpred, F.l1_loss, l1_dpred)
register(op.huber_loss, op.huber_loss_dpred, F.huber_loss, huber_dpred)
register(op.kl_div, op.kl_div_dpred, kl_div, kl_div_dpred)
register(op.binary_cross_entropy, op.binary_cross_entropy_dpred, probability, probability_dpred)
register(
    op.binary_cross_entropy_with_logits,
    op.binary_cross_entropy_with_logits_dpred,
    F.binary_cross_entropy_with_logits,
    logits_dpred,
)
