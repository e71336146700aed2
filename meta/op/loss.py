"""Losses.

The target comes first. ``reduction`` says what becomes of the elements: "mean" and "sum" give a
0-d tensor (the mean of nothing is NaN), "none" leaves them. Add a loss as a pair: the loss, and
``<loss>_dpred``, which is its gradient multiplied by that of the result in one pass.

Class labels are integers. A row whose label is -100, torch's ``ignore_index``, is left out of the
sum and of the count. On the CPU another label outside [0, c) raises IndexOutOfRange. On CUDA it
does with META_CHECK_INDICES; without, such a row is left out, too.
"""

from typing import Any

from meta import op as operators
from meta.base import dtype as dtypes
from meta.base.errors import TypeInferError
from meta.ir.types import Dim
from meta.op.core import Tensor, op
from meta.op.core.check import fit, require, require_float, require_ndim, require_same_dtype
from meta.op.core.elementwise import described
from meta.op.core.function import function, operand
from meta.op.core.indices import IndexRange

IGNORED = -100
"""The label of a row that does not count."""


def _classes(y_pred: Tensor) -> tuple[IndexRange, ...]:
    """Say what the labels may be."""
    return (IndexRange("y_true", y_pred.shape[1], "the classes, axis 1 of y_pred", also=IGNORED),)


def _check_labels(y_true: Tensor, y_pred: Tensor) -> None:
    """Raise TypeInferError unless these are n integer labels and n rows of c >= 1 scores."""
    if (y_true.ndim, y_pred.ndim) != (1, 2):
        raise TypeInferError(
            "labels and scores do not have the axes of n rows",
            expected="y_true[n], y_pred[n, c]",
            found=f"y_true={y_true}, y_pred={y_pred}",
            hint=_axes_hint(y_true, y_pred),
        )
    require_float(y_pred, "y_pred")
    found = f"y_true={y_true}, y_pred={y_pred}"
    integers = not dtypes.is_float(y_true.dtype) and y_true.dtype != "bool"
    require(integers, "labels must be integers", expected="class indices, int64", found=found)
    (n,), (rows, classes) = y_true.shape, y_pred.shape
    # Extents that are not numbers yet are compared when they are.
    differ = isinstance(n, int) and isinstance(rows, int) and n != rows
    require(not differ, "there must be one label per row", expected=f"y_true[{rows}]", found=found)
    require(classes != 0, "y_pred has no class", expected="y_pred[n, c] with c >= 1", found=found)


def _axes_hint(y_true: Tensor, y_pred: Tensor) -> str:
    if dtypes.is_float(y_true.dtype) and not dtypes.is_float(y_pred.dtype):
        return "the labels come first, then the scores: loss(labels, scores)"
    if y_true.ndim > 1 and y_pred.ndim == y_true.ndim + 1:
        last = y_true.shape == y_pred.shape[:-1]
        order = (0, *range(2, y_pred.ndim), 1)
        moved = "scores" if last else f"op.transpose(scores, {order})"
        return (
            "a row for each place: labels op.reshape(labels, (-1,)), scores "
            f"op.reshape({moved}, (-1, c)), c being the number of classes"
        )
    if y_true.ndim == y_pred.ndim == 2:
        return (
            "labels are class indices: op.argmax(labels, 1) of one-hot ones, or one column of them"
        )
    return "one label for each row of scores"


def _check_gradient(dy: Tensor, y_true: Tensor, y_pred: Tensor) -> None:
    _check_labels(y_true, y_pred)
    if dy.shape != () or dy.dtype != y_pred.dtype:
        expected = f"the gradient of the loss, {y_pred.with_shape(())}"
        raise TypeInferError("dy does not fit", expected=expected, found=str(dy))


def _check_pair(y_true: Tensor, y_pred: Tensor) -> None:
    require_float(y_pred, "y_pred")
    require_same_dtype(y_true, y_pred)
    found = f"y_true={y_true}, y_pred={y_pred}"
    require(y_true == y_pred, "y_true and y_pred differ", expected="one shape", found=found)


@op
def smooth_l1_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Mean of ``0.5 d²`` where |d| < 1 and ``|d| - 0.5`` elsewhere, with d = y_pred - y_true.

    y_true, y_pred: floating point, one shape and dtype. Result: shape (), summed in at least
    float32; NaN for empty arguments. Girshick, Fast R-CNN, 2015, eq. 3.
    """
    _check_pair(y_true, y_pred)
    return y_pred.with_shape(())


@op(schema=smooth_l1_loss)
def smooth_l1_loss_dpred(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Derivative of `smooth_l1_loss` by y_pred: ``clip(y_pred - y_true, -1, 1) / size``.

    To be multiplied by the gradient of the loss. Result: type of y_pred.
    """
    _check_pair(y_true, y_pred)
    return y_pred


@op(like=smooth_l1_loss_dpred)
def smooth_l1_loss_dtrue() -> None:
    """Derivative of `smooth_l1_loss` by y_true: ``clip(y_true - y_pred, -1, 1) / size``.

    To be multiplied by the gradient of the loss. Result: type of y_true, which y_pred has, too.
    """


@op(indices=_classes)
def nll_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Negative log-likelihood: mean over rows i of ``-y_pred[i, y_true[i]]``.

    y_true: labels (n,), any integer dtype. y_pred: log-probabilities (n, c), floating point.
    Result: shape (), dtype of y_pred, summed in at least float32. Rows whose label is -100 are left
    out; NaN if none is left. Raises IndexOutOfRange for others outside [0, c): on CUDA with
    META_CHECK_INDICES only, without it their rows are left out.
    """
    _check_labels(y_true, y_pred)
    return y_pred.with_shape(())


@op(indices=_classes)
def nll_loss_dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Gradient of `nll_loss` by y_pred: ``-dy / count`` at each row's label, 0 elsewhere.

    dy: gradient of the loss, shape (). count: the rows not left out. Result: type of y_pred.
    """
    _check_gradient(dy, y_true, y_pred)
    return y_pred


@op(schema=nll_loss_dpred)
def nll_loss_dtrue(dy: Tensor, y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Gradient of `nll_loss` by the labels: zeros, type of y_true; they take whole numbers only."""
    _check_gradient(dy, y_true, y_pred)
    return y_true


@op(like=nll_loss, indices=_classes)
def cross_entropy() -> None:
    """Cross entropy of a softmax: `nll_loss` of ``log_softmax(y_pred, axis=1)``.

    y_true: labels (n,), any integer dtype. y_pred: logits (n, c), floating point.
    Result: shape (), dtype of y_pred, computed in at least float32. Labels are as in `nll_loss`.
    """


@op(like=nll_loss_dpred, indices=_classes)
def cross_entropy_dpred() -> None:
    """Gradient of `cross_entropy` by y_pred: ``(softmax(y_pred, 1) - hot) * dy / count``.

    dy: gradient of the loss, shape (). hot: 1 at each row's label, else 0. count: the rows not left
    out; the gradient of those left out is 0. Result: type of y_pred.
    """


@op(like=nll_loss_dtrue)
def cross_entropy_dtrue() -> None:
    """Gradient of `cross_entropy` by the labels: zeros, type of y_true. See `nll_loss_dtrue`."""


_REDUCTIONS = ("mean", "sum", "none")


def _loss(
    y_true: Tensor, y_pred: Tensor, reduction: str, allowed: tuple[str, ...] = _REDUCTIONS
) -> Tensor:
    """Check the arguments of a loss; return its type."""
    _check_pair(y_true, y_pred)
    known = ", ".join(allowed)
    require(reduction in allowed, "there is no such reduction", expected=known, found=reduction)
    return y_pred if reduction == "none" else y_pred.with_shape(())


def _dpred(dy: Tensor, loss: Tensor, y_pred: Tensor) -> Tensor:
    """Check the gradient of a loss of a type; return the type of y_pred's gradient."""
    fits = dy == loss or not (dy.is_static and loss.is_static)
    require(fits, "dy does not fit", expected=f"the gradient of the loss, {loss}", found=str(dy))
    return y_pred


ARGUMENTS = (
    'y_true, y_pred: floating point, one shape and dtype. reduction: "mean", "sum" or "none". '
    'Result: their dtype, of shape (), for "none" of theirs; computed in at least float32. Raises '
    "TypeInferError if types differ or there is no such reduction."
)
LOSSES = {
    "mse_loss": (
        "Squared error: ``(y_pred - y_true)**2``, reduced.",
        "``2 * (y_pred - y_true) * dy``",
    ),
    "l1_loss": (
        "Absolute error: ``|y_pred - y_true|``, reduced.",
        "``sign(y_pred - y_true) * dy``, where the sign of 0 and of NaN is 0, as torch's",
    ),
    "binary_cross_entropy": (
        "``-(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred))``, reduced.\n\n"
        "y_pred: probabilities; a logarithm below -100 counts as -100, so that 0 and 1 give a "
        "finite loss (torch's rule). Outside [0, 1] the loss is NaN. y_true: probabilities as "
        "well, 0 and 1 among them.",
        "``(y_pred - y_true) / (y_pred * (1 - y_pred)) * dy``, the denominator at least 1e-12, as "
        "torch's",
    ),
    "binary_cross_entropy_with_logits": (
        "`binary_cross_entropy` of ``sigmoid(y_pred)``, without overflow.\n\n"
        "An element is ``(1 - y_true) * y_pred + max(-y_pred, 0) + log(1 + exp(-|y_pred|))``. "
        "y_pred: logits, any real numbers.",
        "``(sigmoid(y_pred) - y_true) * dy``",
    ),
}
"""What a loss is, and the formula of its gradient."""


def _define(name: str, what: str, derivative: str) -> None:
    @op(name=name)
    @described(f"{what}\n\n{ARGUMENTS}")
    def loss(y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
        return _loss(y_true, y_pred, reduction)

    @op(name=f"{name}_dpred")
    @described(
        f'Gradient of `{name}` by y_pred: {derivative}, over the size for "mean".\n\n'
        "dy: gradient of the loss, of its type. Other arguments as there. Result: type of y_pred."
    )
    def dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
        return _dpred(dy, _loss(y_true, y_pred, reduction), y_pred)


for _name, (_what, _derivative) in LOSSES.items():
    _define(_name, _what, _derivative)


@op
def huber_loss(
    y_true: Tensor, y_pred: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """``0.5 d**2`` where |d| <= delta, else ``delta * (|d| - 0.5 delta)``, reduced.

    d = y_pred - y_true (Huber, "Robust estimation of a location parameter", 1964). delta: positive.
    Other arguments and the result as of `mse_loss`.
    """
    require(delta > 0, "delta must be positive", found=delta)
    return _loss(y_true, y_pred, reduction)


@op(options=huber_loss)
def huber_loss_dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor, *options: Any) -> Tensor:
    """Gradient of `huber_loss` by y_pred: ``clip(y_pred - y_true, -delta, delta) * dy``.

    Over the size for "mean". dy: gradient of the loss, of its type. Result: type of y_pred.
    """
    return _dpred(dy, huber_loss.type_function(y_true, y_pred, *options), y_pred)


@op
def kl_div(
    y_true: Tensor, y_pred: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Kullback-Leibler divergence: ``y_true * (log(y_true) - y_pred)``, reduced.

    y_pred: log-probabilities. y_true: probabilities, where 0 * log(0) is 0; with ``log_target``
    log-probabilities too, and an element is ``exp(y_true) * (y_true - y_pred)``. Both floating
    point, of one shape and dtype. reduction: "mean" over all elements, "sum", "none", or
    "batchmean", the sum over the extent of axis 0, which is the divergence as mathematics has it.
    Result: their dtype, of shape (), for "none" of theirs; computed in at least float32.
    Raises TypeInferError if types differ or there is no such reduction.
    Kullback and Leibler, "On information and sufficiency", 1951; arguments as torch's.
    """
    axis = reduction != "batchmean" or y_pred.ndim > 0
    require(axis, "batchmean needs an axis of the batch", expected="ndim >= 1", found=str(y_pred))
    return _loss(y_true, y_pred, reduction, (*_REDUCTIONS, "batchmean"))


@op(options=kl_div)
def kl_div_dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor, *options: Any) -> Tensor:
    """Gradient of `kl_div` by y_pred: ``-y_true * dy``, or ``-exp(y_true) * dy`` with log_target.

    Over the size for "mean", over the extent of axis 0 for "batchmean". dy: gradient of the loss,
    of its type. Result: type of y_pred.
    """
    return _dpred(dy, kl_div.type_function(y_true, y_pred, *options), y_pred)


def _check_sequences(
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
    count = _check_sequences(log_probs, targets, input_lengths, target_lengths, blank)
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
    count = _check_sequences(log_probs, targets, input_lengths, target_lengths, blank)
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
    if reduction not in _REDUCTIONS:
        raise TypeInferError(
            "there is no such reduction",
            op="ctc_loss",
            expected=", ".join(_REDUCTIONS),
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
