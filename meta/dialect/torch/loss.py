"""Losses on ATen. Half precision is computed in float32, whose result is rounded once."""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened
from meta.op.loss import IGNORED


@dialect.kernel(op.smooth_l1_loss)
def smooth_l1_loss(y_true, y_pred):
    return F.smooth_l1_loss(widened(y_pred), widened(y_true)).to(y_pred.dtype)


def clipped(difference):
    """Return the difference within [-1, 1], divided by the number of elements."""
    return difference.clamp_(-1, 1).div_(max(difference.numel(), 1))


@dialect.kernel(op.smooth_l1_loss_dpred)
def smooth_l1_loss_dpred(y_true, y_pred):
    return clipped(widened(y_pred) - widened(y_true)).to(y_pred.dtype).contiguous()


@dialect.kernel(op.smooth_l1_loss_dtrue)
def smooth_l1_loss_dtrue(y_true, y_pred):
    return clipped(widened(y_true) - widened(y_pred)).to(y_pred.dtype).contiguous()


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


@dialect.kernel(op.nll_loss_dtrue)
def nll_loss_dtrue(out):
    out.zero_()


@dialect.kernel(op.cross_entropy)
def cross_entropy(y_true, y_pred):
    return F.cross_entropy(widened(y_pred), labels(y_true, y_pred)).to(y_pred.dtype)


@dialect.kernel(op.cross_entropy_dpred)
def cross_entropy_dpred(dy, y_true, y_pred):
    hot, share = at_labels(dy, y_true, y_pred)
    softmax = torch.softmax(widened(y_pred), 1)
    return softmax.mul_(share[:, None]).sub_(hot).to(y_pred.dtype)


@dialect.kernel(op.cross_entropy_dtrue)
def cross_entropy_dtrue(out):
    out.zero_()
