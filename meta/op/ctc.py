"""Connectionist temporal classification: the loss of a sequence whose alignment is not known."""

from __future__ import annotations

from typing import Any

from meta import op as operators
from meta.base.errors import TypeInferError
from meta.ir.types import Dim
from meta.op.core import Tensor, op
from meta.op.core.check import fit, require, require_float, require_ndim
from meta.op.core.function import function, operand

REDUCTIONS = ("mean", "sum", "none")


def _check(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int
) -> Dim:
    """Check the arguments of a loss; return the number of sequences."""
    require_ndim(log_probs, 3, "log_probs")
    require_float(log_probs, "log_probs")
    steps, count, classes = log_probs.shape
    require(steps != 0, "log_probs has no time step", found=str(log_probs))
    for name, x in (
        ("targets", targets),
        ("input_lengths", input_lengths),
        ("target_lengths", target_lengths),
    ):
        require("int" in x.dtype, f"{name} must be integers", found=str(x))
    padded = targets.ndim == 2 and fit(targets.shape[:1], (count,))
    expected = f"[{count}, longest], or one axis with all targets in a row"
    require(padded or targets.ndim == 1, "targets does not fit", expected=expected, found=targets)
    for name, x in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        require(fit(x.shape, (count,)), f"{name} does not fit", expected=f"[{count}]", found=str(x))
    known = not isinstance(classes, int) or blank < classes
    require(blank >= 0 and known, "blank is no class", expected=f"0 to {classes} - 1", found=blank)
    return count


@op
def ctc_losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """The loss of `ctc_loss` for each sequence of a batch, not reduced.

    log_probs: (T, N, C), floating point. targets: (N, S), or (sum of target_lengths,); integers, as
    are the lengths, (N,). Result: (N,) of the dtype of log_probs, computed in at least float32.
    Raises TypeInferError for other types or a blank that is no class, and IndexOutOfRange for a
    length that is longer than what it is of, and a target that is the blank or no class.
    """
    count = _check(log_probs, targets, input_lengths, target_lengths, blank)
    return log_probs.with_shape((count,))


@op
def ctc_losses_dx(
    dy: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """Gradient of `ctc_losses` by log_probs: ``-dy`` times the probability that the alignment is in
    this class at this step, given the targets. Of an infinite loss it is NaN, or 0 with
    zero_infinity.

    dy: gradient of the losses, (N,). Result: type of log_probs. Raises as `ctc_losses`.
    """
    count = _check(log_probs, targets, input_lengths, target_lengths, blank)
    fits = fit(dy.shape, (count,)) and dy.dtype == log_probs.dtype
    require(fits, "dy does not fit", expected=str(log_probs.with_shape((count,))), found=str(dy))
    return log_probs


@function
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return -log of the probability that the classes of all time steps, repetitions removed and
    then blanks, are the targets.

    log_probs: logarithms of probabilities, as from `log_softmax`, (T, N, C) or, of one sequence,
    (T, C). targets: (N, S), of which the first ``target_lengths`` count, or all in a row, (sum of
    target_lengths,); of one sequence (S,). input_lengths, target_lengths: (N,), or 0-d of one
    sequence: how many time steps and targets there are. blank: the class that stands for none.
    reduction: "none" gives a loss for each sequence, "sum" their sum, and "mean" the mean of losses
    divided by target lengths (at least 1). zero_infinity: the loss of targets that do not fit into
    the time steps is 0 instead of infinite, and so is its gradient.

    Graves et al., "Connectionist temporal classification", 2006; arguments as torch's. Raises
    TypeInferError for other types or reductions, and IndexOutOfRange as `meta.op.ctc_losses`.
    """
    log_probs, targets = operand(log_probs), operand(targets)
    input_lengths, target_lengths = operand(input_lengths), operand(target_lengths)
    if reduction not in REDUCTIONS:
        raise TypeInferError(
            "there is no such reduction",
            op="ctc_loss",
            expected=", ".join(REDUCTIONS),
            found=repr(reduction),
        )
    single = log_probs.ndim == 2
    if single:
        log_probs, targets = (
            operators.expand_dims(log_probs, 1),
            operators.reshape(targets, (1, -1)),
        )
        input_lengths = operators.reshape(input_lengths, (1,))
        target_lengths = operators.reshape(target_lengths, (1,))
    losses = operators.ctc_losses(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    if reduction == "mean":
        lengths = operators.cast(operators.maximum(target_lengths, 1), losses.dtype)
        return operators.mean(losses / lengths, (0,))
    if reduction == "sum":
        return operators.sum(losses, (0,))
    return operators.squeeze(losses, 0) if single else losses
