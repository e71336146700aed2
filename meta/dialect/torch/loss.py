"""Losses on ATen.

Their gradients are those of ATen, asked for by its own operators. Of `ctc_losses` the host reads
lengths and targets, and looks whether they are within their tensors: ATen's kernels do not.
"""

from functools import partial

import torch
import torch.nn.functional as F

from meta import op
from meta.base.errors import IndexOutOfRange
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels, widened, with_signature
from meta.op.loss import IGNORED


@dialect.kernel(op.smooth_l1_loss)
def smooth_l1_loss(prediction, target):
    return F.smooth_l1_loss(widened(prediction), widened(target)).to(prediction.dtype)


def _clipped(y, other):
    """Return the difference within [-1, 1], divided by the number of elements."""
    difference = widened(y) - widened(other)
    return difference.clamp_(-1, 1).div_(max(difference.numel(), 1)).to(y.dtype).contiguous()


kernels(
    {
        op.smooth_l1_loss_dpred: lambda prediction, target: _clipped(prediction, target),
        op.smooth_l1_loss_dtarget: lambda prediction, target: _clipped(target, prediction),
    }
)


def labels(prediction, target):
    """Return the labels as int64, with `IGNORED` for no class: at others ATen ends the process."""
    target = target.long()
    return target.masked_fill((target < 0) | (target >= prediction.shape[1]), IGNORED)


@dialect.kernel(op.nll_loss)
def nll_loss(prediction, target):
    return F.nll_loss(widened(prediction), labels(prediction, target)).to(prediction.dtype)


def at_labels(dy, prediction, target):
    """Return dy / count at the label of every row that counts, 0 elsewhere; and the same by row."""
    target = labels(prediction, target)
    counts = target != IGNORED
    share = torch.where(counts, widened(dy) / counts.sum(), 0)
    zeros = torch.zeros(prediction.shape, dtype=share.dtype, device=share.device)
    return zeros.scatter_(1, target.clamp(min=0)[:, None], share[:, None]), share


@dialect.kernel(op.nll_loss_dpred)
def nll_loss_dpred(dy, prediction, target):
    hot, _ = at_labels(dy, prediction, target)
    return hot.neg_().to(prediction.dtype)


@dialect.kernel(op.cross_entropy)
def cross_entropy(prediction, target, classes):
    scores = prediction[:, :classes]
    return F.cross_entropy(widened(scores), labels(scores, target)).to(prediction.dtype)


def _statistics(prediction, classes):
    """Return the largest score of each row, and the sum of exponentials of the others less it."""
    scores = widened(prediction[:, :classes])
    largest = scores.amax(1)
    return largest, (scores - largest[:, None]).exp_().sum(1)


@dialect.kernel(op.cross_entropy_train)
def cross_entropy_train(prediction, target, classes):
    return cross_entropy(prediction, target, classes), *_statistics(prediction, classes)


@dialect.kernel(op.cross_entropy_dpred)
def cross_entropy_dpred(dy, prediction, target, classes):
    largest, total = _statistics(prediction, classes)
    return cross_entropy_train_dpred(dy, prediction, target, largest, total, classes)


@dialect.kernel(op.cross_entropy_train_dpred)
def cross_entropy_train_dpred(dy, prediction, target, largest, total, classes):
    scores = prediction[:, :classes]
    hot, share = at_labels(dy, scores, target)
    counts = labels(scores, target) != IGNORED
    softmax = (widened(scores) - largest[:, None]).exp_().mul_((share / total)[:, None])
    # Also where the scores are no numbers.
    found = softmax.masked_fill_(~counts[:, None], 0).sub_(hot).to(prediction.dtype)
    return F.pad(found, (0, prediction.shape[1] - found.shape[1]))


@dialect.kernel(op.nll_loss_dtarget)
@dialect.kernel(op.cross_entropy_dtarget)
def no_gradient_of_labels(out):
    out.zero_()


CODES = {"none": 0, "mean": 1, "sum": 2, "batchmean": 2}
"""ATen's numbers of the reductions; `kl_div` divides a sum by the number of rows."""


def _share(dy, prediction, reduction):
    """Return dy, divided by the number of elements, or of rows, that a mean is taken over."""
    counts = {
        "mean": prediction.numel(),
        "batchmean": prediction.shape[0] if prediction.ndim else 1,
    }
    return dy / max(counts[reduction], 1) if reduction in counts else dy


def register(loss, forward):
    """Register a loss: ``forward(prediction, target, reduction, *attributes)``."""

    def kernel(prediction, target, **attributes):
        return forward(widened(prediction), widened(target), **attributes).to(prediction.dtype)

    dialect.kernel(loss)(with_signature(kernel, loss.schema.signature))


def register_gradient(loss_dpred, backward):
    """Register a gradient: ``backward(dy, prediction, target, reduction, *attributes)``."""

    def kernel(dy, prediction, target, **attributes):
        found = backward(*widened(dy, prediction, target), **attributes)
        return found.to(prediction.dtype).contiguous()

    dialect.kernel(loss_dpred)(with_signature(kernel, loss_dpred.schema.signature))


def _by_slope(slope, dy, prediction, target, reduction, **attributes):
    """Return the gradient by the derivative of an element, which is a fresh tensor."""
    return slope(prediction, target, **attributes).mul_(_share(dy, prediction, reduction))


def mse_dpred(dy, prediction, target, reduction):
    return torch.ops.aten.mse_loss_backward(dy, prediction, target, CODES[reduction])


def probability(prediction, target, reduction):
    """The loss as `op.binary_cross_entropy` states it: ATen refuses what is no probability."""
    outside = (prediction < 0) | (prediction > 1)
    if outside.any():
        prediction = prediction.masked_fill(outside, torch.nan)
    logs = prediction.log().clamp_(min=-100), (-prediction).log1p_().clamp_(min=-100)
    elements = (target - 1) * logs[1] - target * logs[0]
    return elements if reduction == "none" else getattr(elements, reduction)()


def probability_slope(prediction, target):
    return (prediction - target) / (prediction * (1 - prediction)).clamp_(min=1e-12)


def kl_div(prediction, target, reduction, log_target):
    # F.kl_div of mean warns about batchmean, and is ATen's operator otherwise.
    found = torch.kl_div(prediction, target, CODES[reduction], log_target=log_target)
    return found / prediction.shape[0] if reduction == "batchmean" else found


for _name, _forward, _slope in (
    ("l1_loss", F.l1_loss, lambda p, t: torch.sign(p - t)),
    ("huber_loss", F.huber_loss, lambda p, t, delta: (p - t).clamp_(-delta, delta)),
    ("kl_div", kl_div, lambda p, t, log_target: -(t.exp() if log_target else t)),
    ("binary_cross_entropy", probability, probability_slope),
    (
        "binary_cross_entropy_with_logits",
        F.binary_cross_entropy_with_logits,
        lambda p, t: torch.sigmoid(p).sub_(t),
    ),
):
    register(getattr(op, _name), _forward)
    register_gradient(getattr(op, f"{_name}_dpred"), partial(_by_slope, _slope))
register(op.mse_loss, F.mse_loss)
register_gradient(op.mse_loss_dpred, mse_dpred)


def _of_sequences(base):
    reason = "the host reads the lengths"
    return dialect.kernel(base, plevel=LIBRARY, not_capturable=reason, strided=False)


def _refuse(base, what, expected, found):
    raise IndexOutOfRange(what, op=base.name, expected=expected, found=found)


def _checked(base, log_probs, targets, input_lengths, target_lengths, blank):
    """Return targets as int64, (N, S), and the lengths as lists; IndexOutOfRange if one of them
    names what there is not.
    """
    steps, count, classes = log_probs.shape
    inputs, lengths = input_lengths.tolist(), target_lengths.tolist()
    if any(not 0 <= n <= steps for n in inputs):
        _refuse(base, "an input length is out of range", f"0 to {steps}", inputs)
    longest = targets.shape[1] if targets.ndim == 2 else len(targets)
    if any(not 0 <= n <= longest for n in lengths):
        _refuse(base, "a target length is out of range", f"0 to {longest}", lengths)
    host = targets.long().cpu()
    if targets.ndim == 1:
        if sum(lengths) != longest:
            _refuse(base, "target lengths do not add up", f"a sum of {longest}", sum(lengths))
        host = torch.nn.utils.rnn.pad_sequence(list(host.split(lengths)), True) if count else host
    within = torch.arange(host.shape[-1]) < torch.tensor(lengths).unsqueeze(-1)
    wrong = host[within & ((host < 0) | (host >= classes) | (host == blank))] if count else host
    if len(wrong) and count:
        expected = f"0 to {classes - 1}, and not the blank, {blank}"
        _refuse(base, "a target is no class", expected, int(wrong[0]))
    # What is behind the lengths may be anything.
    padded = host.masked_fill(~within, 0) if count else host
    return padded.to(log_probs.device), inputs, lengths


@_of_sequences(op.ctc_losses)
def ctc_losses(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    given = _checked(op.ctc_losses, log_probs, targets, input_lengths, target_lengths, blank)
    if not log_probs.shape[1]:
        return log_probs.new_zeros(0)
    losses, _ = torch.ops.aten._ctc_loss(widened(log_probs), *given, blank, zero_infinity)
    if zero_infinity:
        losses = losses.masked_fill(losses == torch.inf, 0)
    return losses.to(log_probs.dtype)


@_of_sequences(op.ctc_losses_dx)
def ctc_losses_dx(dy, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    given = _checked(op.ctc_losses_dx, log_probs, targets, input_lengths, target_lengths, blank)
    if not log_probs.shape[1]:
        return torch.empty_like(log_probs)
    wide, dy = widened(log_probs, dy)
    losses, alpha = torch.ops.aten._ctc_loss(wide, *given, blank, zero_infinity)
    found = torch.ops.aten._ctc_loss_backward(dy, wide, *given, losses, alpha, blank, zero_infinity)
    # ATen's is the gradient by what a log_softmax is of: it has the probabilities in addition.
    steps = torch.arange(len(wide), device=wide.device).view(-1, 1, 1)
    inside = steps < torch.tensor(given[1], device=wide.device).view(1, -1, 1)
    found = torch.where(inside, found - wide.exp() * dy.view(1, -1, 1), 0)
    endless = (losses == torch.inf).view(1, -1, 1)
    found = found.masked_fill(endless, 0.0 if zero_infinity else torch.nan)
    return found.to(log_probs.dtype).contiguous()
