"""Connectionist temporal classification on ATen.

The host reads lengths and targets, and looks whether they are within their tensors: ATen's kernels
do not.
"""

import torch

from meta import op
from meta.base.errors import IndexOutOfRange
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened


def _kernel(base):
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


@_kernel(op.ctc_losses)
def ctc_losses(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):
    given = _checked(op.ctc_losses, log_probs, targets, input_lengths, target_lengths, blank)
    if not log_probs.shape[1]:
        return log_probs.new_zeros(0)
    losses, _ = torch.ops.aten._ctc_loss(widened(log_probs), *given, blank, zero_infinity)
    if zero_infinity:
        losses = losses.masked_fill(losses == torch.inf, 0)
    return losses.to(log_probs.dtype)


@_kernel(op.ctc_losses_dx)
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
