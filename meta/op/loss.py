"""Losses.

The prediction comes first, then the target. ``reduction`` says what becomes of the elements: "mean"
and "sum" give a 0-d tensor (the mean of nothing is NaN), "none" leaves them. Add a loss as a pair:
the loss, and ``<loss>_dpred``, which is its gradient multiplied by that of the result in one pass.

Class labels are integers. A row whose label is -100, torch's ``ignore_index``, is left out of the
sum and of the count. On the CPU another label outside [0, c) raises IndexOutOfRange. On CUDA it
does with META_CHECK_INDICES; without, such a row is left out, too.

An operator is the usual form of a loss. What a call takes beyond it, such as weights, is composed
of operators: `loss_calls.py`, `composed_losses.py`.
"""

from collections.abc import Iterable
from typing import Any

from meta.base import dtype as dtypes
from meta.base.errors import TypeInferError
from meta.ir.types import Dim
from meta.op.core import Tensor, op
from meta.op.core.axes import Args, Axes, elementwise, terms
from meta.op.core.check import (
    require,
    require_float,
    require_ndim,
    require_same_dtype,
    shapes_compatible,
)
from meta.op.core.elementwise import with_docstring
from meta.op.core.indices import IndexRange
from meta.op.core.op import ComposedOp

IGNORED = -100
"""The label of a row that does not count."""


def _classes(prediction: Tensor) -> tuple[IndexRange, ...]:
    """Say what the labels may be."""
    into = "the classes, axis 1 of prediction"
    return (IndexRange("target", prediction.shape[1], into, also=IGNORED),)


def _first_classes(prediction: Tensor, classes: int | None) -> tuple[IndexRange, ...]:
    """Say what the labels may be where the other columns are padding."""
    if classes is None:
        return _classes(prediction)
    return (IndexRange("target", classes, "the classes", also=IGNORED),)


def _check_classes(prediction: Tensor, classes: int | None) -> None:
    """Raise TypeInferError unless so many columns are there."""
    columns = prediction.shape[1]
    fits = classes is None or (classes > 0 and (not isinstance(columns, int) or classes <= columns))
    expected = f"1 to {columns}, the columns of prediction"
    require(fits, "there are not so many classes", expected=expected, found=str(classes))


def _check_labels(prediction: Tensor, target: Tensor) -> None:
    """Raise TypeInferError unless these are n integer labels and n rows of c >= 1 scores."""
    if (prediction.ndim, target.ndim) != (2, 1):
        raise TypeInferError(
            "labels and scores do not have the axes of n rows",
            expected="prediction[n, c], target[n]",
            found=f"prediction={prediction}, target={target}",
        )
    require_float(prediction, "prediction")
    found = f"prediction={prediction}, target={target}"
    integers = not dtypes.is_float(target.dtype) and target.dtype != "bool"
    require(integers, "labels must be integers", expected="class indices, int64", found=found)
    (rows, classes), (n,) = prediction.shape, target.shape
    # Extents that are not numbers yet are compared when they are.
    differ = isinstance(n, int) and isinstance(rows, int) and n != rows
    require(not differ, "there must be one label per row", expected=f"target[{rows}]", found=found)
    some = "prediction[n, c] with c >= 1"
    require(classes != 0, "prediction has no class", expected=some, found=found)


def _check_gradient(dy: Tensor, prediction: Tensor, target: Tensor) -> None:
    _check_labels(prediction, target)
    if dy.shape != () or dy.dtype != prediction.dtype:
        expected = f"the gradient of the loss, {prediction.with_shape(())}"
        raise TypeInferError("dy does not fit", expected=expected, found=str(dy))


def _check_pair(prediction: Tensor, target: Tensor) -> None:
    require_float(prediction, "prediction")
    require_same_dtype(prediction, target)
    found = f"prediction={prediction}, target={target}"
    require(prediction == target, "prediction and target differ", expected="one shape", found=found)


PAIR = ("prediction", "target")


@op(composed=True, promotes=PAIR)
def smooth_l1_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean of ``0.5 d²`` where |d| < 1 and ``|d| - 0.5`` elsewhere, with d = prediction - target.

    A call takes ``reduction``, too, and ``beta``: an element is ``0.5 d² / beta`` where |d| < beta
    and ``|d| - 0.5 beta`` elsewhere; for 0 it is |d|.

    prediction, target: floating point, one shape and dtype. Result: shape (), summed in at least
    float32; NaN for empty arguments. Girshick, Fast R-CNN, 2015, eq. 3.
    """
    _check_pair(prediction, target)
    return prediction.with_shape(())


@op(schema=smooth_l1_loss)
def smooth_l1_loss_dpred(prediction: Tensor, target: Tensor) -> Tensor:
    """Derivative of `smooth_l1_loss` by prediction: ``clip(prediction - target, -1, 1) / size``.

    To be multiplied by the gradient of the loss. Result: type of prediction.
    """
    _check_pair(prediction, target)
    return prediction


@op(like=smooth_l1_loss_dpred)
def smooth_l1_loss_dtarget() -> None:
    """Derivative of `smooth_l1_loss` by target: ``clip(target - prediction, -1, 1) / size``.

    To be multiplied by the gradient of the loss. Result: type of target, which prediction has, too.
    """


@op(composed=True, indices=_classes)
def nll_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood: mean over rows i of ``-prediction[i, target[i]]``.

    A call takes any shape and more, as `cross_entropy`, but no probabilities as a target.

    prediction: log-probabilities (n, c), floating point. target: labels (n,), any integer dtype.
    Result: shape (), dtype of prediction, summed in at least float32. Rows whose label is -100 are
    left out; NaN if none is left. Raises IndexOutOfRange for others outside [0, c): on CUDA with
    META_CHECK_INDICES only, without it their rows are left out.
    """
    _check_labels(prediction, target)
    return prediction.with_shape(())


@op(indices=_classes)
def nll_loss_dpred(dy: Tensor, prediction: Tensor, target: Tensor) -> Tensor:
    """Gradient of `nll_loss` by prediction: ``-dy / count`` at each row's label, 0 elsewhere.

    dy: gradient of the loss, shape (). count: the rows not left out. Result: type of prediction.
    """
    _check_gradient(dy, prediction, target)
    return prediction


@op(schema=nll_loss_dpred)
def nll_loss_dtarget(dy: Tensor, prediction: Tensor, target: Tensor) -> Tensor:
    """Gradient of `nll_loss` by the labels: zeros, type of target; they take whole numbers only."""
    _check_gradient(dy, prediction, target)
    return target


@op(composed=True, indices=_first_classes)
def cross_entropy(prediction: Tensor, target: Tensor, classes: int | None = None) -> Tensor:
    """Cross entropy of a softmax: `nll_loss` of ``log_softmax(prediction, axis=1)``.

    prediction: logits (n, c), floating point. target: labels (n,), any integer dtype, as in
    `nll_loss`. classes: in a program, how many of the columns are classes; the others are padding,
    whatever is there. Result: shape (), dtype of prediction, computed in at least float32.

    A call takes any shape, and what else torch's does. prediction: (n, c, ...), or (c,) with one
    label. target: labels (n, ...), or probabilities, floating point, of the prediction's shape.
    weight: a factor for each class, (c,); "mean" divides by the sum of those of the labels, of
    probabilities by the number of rows. ignore_index: the label that is left out, instead of -100.
    reduction: "mean", "sum" or "none", which gives a loss for each label. label_smoothing: the part
    of the target, from 0 to 1, that is spread evenly over the classes (Szegedy et al., "Rethinking
    the Inception architecture", 2016). Raises TypeInferError for arguments that do not fit.
    """
    _check_labels(prediction, target)
    _check_classes(prediction, classes)
    return prediction.with_shape(())


@op(indices=_first_classes)
def cross_entropy_dpred(
    dy: Tensor, prediction: Tensor, target: Tensor, classes: int | None = None
) -> Tensor:
    """Gradient of `cross_entropy` by prediction: ``(softmax(prediction, 1) - hot) * dy / count``.

    dy: gradient of the loss, shape (). hot: 1 at each row's label, else 0. count: the rows not left
    out. classes: as there. Result: type of prediction; 0 in rows that are left out, and in columns
    that are padding, whatever is there.
    """
    _check_gradient(dy, prediction, target)
    _check_classes(prediction, classes)
    return prediction


def _row_statistics(prediction: Tensor) -> Tensor:
    """Return the type of a number for each row, in which exponentials are added up."""
    wide = "float64" if prediction.dtype == "float64" else "float32"
    return prediction.with_shape(prediction.shape[:1]).with_dtype(wide)


@op(indices=_first_classes)
def cross_entropy_train(
    prediction: Tensor, target: Tensor, classes: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`cross_entropy` of labels that also returns what its gradient needs: (loss, largest, total).

    Of each row of n, ``largest`` is the largest score, and ``total`` the sum of
    ``exp(score - largest)``; float64 if prediction is, else float32. They are constants to
    differentiation.
    """
    _check_labels(prediction, target)
    _check_classes(prediction, classes)
    statistics = _row_statistics(prediction)
    return prediction.with_shape(()), statistics, statistics


@op(indices=_first_classes)
def cross_entropy_train_dpred(
    dy: Tensor,
    prediction: Tensor,
    target: Tensor,
    largest: Tensor,
    total: Tensor,
    classes: int | None = None,
) -> Tensor:
    """`cross_entropy_dpred` that is given what `cross_entropy_train` returned of the rows.

    It reads each score once, where the other one looks for the largest and adds up first.
    """
    _check_gradient(dy, prediction, target)
    _check_classes(prediction, classes)
    statistics = _row_statistics(prediction)
    for value, name in ((largest, "largest"), (total, "total")):
        fits = value == statistics or not (value.is_static and statistics.is_static)
        what = f"{name} is not that of the rows"
        require(fits, what, expected=str(statistics), found=str(value))
    return prediction


@op(like=nll_loss_dtarget)
def cross_entropy_dtarget() -> None:
    """Gradient of `cross_entropy` by the labels: zeros, type of target. See `nll_loss_dtarget`."""


REDUCTIONS = ("mean", "sum", "none")


def _loss(
    prediction: Tensor, target: Tensor, reduction: str, allowed: tuple[str, ...] = REDUCTIONS
) -> Tensor:
    """Check the arguments of a loss; return its type."""
    _check_pair(prediction, target)
    known = ", ".join(allowed)
    require(reduction in allowed, "there is no such reduction", expected=known, found=reduction)
    return prediction if reduction == "none" else prediction.with_shape(())


def _dpred(dy: Tensor, loss: Tensor, prediction: Tensor) -> Tensor:
    """Check the gradient of a loss of a type; return the type of prediction's gradient."""
    fits = dy == loss or not (dy.is_static and loss.is_static)
    require(fits, "dy does not fit", expected=f"the gradient of the loss, {loss}", found=str(dy))
    return prediction


ARGUMENTS = (
    'prediction, target: floating point, one shape and dtype. reduction: "mean", "sum" or "none". '
    'Result: their dtype, of shape (), for "none" of theirs; computed in at least float32. A call '
    "takes ``weight``, too: factors of the elements. {weight} Raises TypeInferError if types "
    "differ or there is no such reduction."
)
OF_WEIGHTS = 'They have the shape of the target; "mean" divides by their sum.'
OF_ELEMENTS = 'They are broadcast; "mean" divides by the number of elements.'
LOSSES = {
    "mse_loss": (
        "Squared error: ``(prediction - target)**2``, reduced.",
        "``2 * (prediction - target) * dy``",
        OF_WEIGHTS,
    ),
    "l1_loss": (
        "Absolute error: ``|prediction - target|``, reduced.",
        "``sign(prediction - target) * dy``, where the sign of 0 and of NaN is 0, as torch's",
        OF_WEIGHTS,
    ),
    "binary_cross_entropy": (
        "``-(target * log(prediction) + (1 - target) * log(1 - prediction))``, reduced.\n\n"
        "prediction: probabilities; a logarithm below -100 counts as -100, so that 0 and 1 give a "
        "finite loss (torch's rule). Outside [0, 1] the loss is NaN. target: probabilities as "
        "well, 0 and 1 among them.",
        "``(prediction - target) / (prediction * (1 - prediction)) * dy``, the denominator at "
        "least 1e-12, as torch's",
        OF_ELEMENTS,
    ),
    "binary_cross_entropy_with_logits": (
        "`binary_cross_entropy` of ``sigmoid(prediction)``, without overflow.\n\n"
        "An element is ``(1 - target) * x + max(-x, 0) + log(1 + exp(-|x|))`` of the prediction x: "
        "logits, any real numbers.",
        "``(sigmoid(prediction) - target) * dy``",
        f"{OF_ELEMENTS} ``pos_weight``, broadcast as well, multiplies what the target has: the "
        "factor of ``-log(sigmoid(x))`` is ``pos_weight * target``.",
    ),
}
"""What a loss is, the formula of its gradient, and what weights there are."""


def _element_axes(args: Args) -> Iterable[Axes]:
    """Return the axes of a loss that is not reduced, and of its gradient."""
    return elementwise(args) if args["reduction"] == "none" else ()


def _define(name: str, what: str, derivative: str, weight: str) -> ComposedOp:
    @op(composed=True, name=name, axes=_element_axes, promotes=PAIR)
    @with_docstring(f"{what}\n\n{ARGUMENTS.format(weight=weight)}")
    def loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return _loss(prediction, target, reduction)

    @op(name=f"{name}_dpred", axes=_element_axes)
    @with_docstring(
        f'Gradient of `{name}` by prediction: {derivative}, over the size for "mean".\n\n'
        "dy: gradient of the loss, of its type. Other arguments as there. Result: type of the "
        "prediction."
    )
    def dpred(dy: Tensor, prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return _dpred(dy, _loss(prediction, target, reduction), prediction)

    return loss


DEFINED = {name: _define(name, *texts) for name, texts in LOSSES.items()}
"""By name, the losses that are defined by this table."""


@op(axes=_element_axes, composed=True, promotes=PAIR)
def huber_loss(
    prediction: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """``0.5 d**2`` where |d| <= delta, else ``delta * (|d| - 0.5 delta)``, reduced.

    d = prediction - target (Huber, "Robust estimation of a location parameter", 1964). delta:
    positive. Other arguments and the result as of `mse_loss`, but that the "mean" divides by the
    number of elements, as torch's, also where there are weights.
    """
    require(delta > 0, "delta must be positive", found=delta)
    return _loss(prediction, target, reduction)


@op(axes=_element_axes, options=huber_loss)
def huber_loss_dpred(dy: Tensor, prediction: Tensor, target: Tensor, *options: Any) -> Tensor:
    """Gradient of `huber_loss` by prediction: ``clip(prediction - target, -delta, delta) * dy``.

    Over the size for "mean". dy: gradient of the loss, of its type. Result: type of prediction.
    """
    return _dpred(dy, huber_loss.type_function(prediction, target, *options), prediction)


@op(axes=_element_axes, promotes=PAIR)
def kl_div(
    prediction: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Kullback-Leibler divergence: ``target * (log(target) - prediction)``, reduced.

    prediction: log-probabilities. target: probabilities, where 0 * log(0) is 0; with ``log_target``
    log-probabilities too, and an element is ``exp(target) * (target - prediction)``. Both floating
    point, of one shape and dtype. reduction: "mean" over all elements, "sum", "none", or
    "batchmean", the sum over the extent of axis 0, which is the divergence as mathematics has it.
    Result: their dtype, of shape (), for "none" of theirs; computed in at least float32.
    Its gradient by a target of 0 is -inf, as that of ``t * log(t)``.
    Raises TypeInferError if types differ or there is no such reduction.
    Kullback and Leibler, "On information and sufficiency", 1951; arguments as torch's.
    """
    axis = reduction != "batchmean" or prediction.ndim > 0
    require(
        axis, "batchmean needs an axis of the batch", expected="ndim >= 1", found=str(prediction)
    )
    return _loss(prediction, target, reduction, (*REDUCTIONS, "batchmean"))


@op(axes=_element_axes, options=kl_div)
def kl_div_dpred(dy: Tensor, prediction: Tensor, target: Tensor, *options: Any) -> Tensor:
    """Gradient of `kl_div` by prediction: ``-target * dy``; with log_target ``-exp(target) * dy``.

    Over the size for "mean", over the extent of axis 0 for "batchmean". dy: gradient of the loss,
    of its type. Result: type of prediction.
    """
    return _dpred(dy, kl_div.type_function(prediction, target, *options), prediction)


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
    padded = targets.ndim == 2 and shapes_compatible(targets.shape[:1], (count,))
    expected = f"[{count}, longest], or one axis with all targets in a row"
    require(padded or targets.ndim == 1, "targets does not fit", expected=expected, found=targets)
    for name, x in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        require(
            shapes_compatible(x.shape, (count,)),
            f"{name} does not fit",
            expected=f"[{count}]",
            found=str(x),
        )
    known = not isinstance(classes, int) or blank < classes
    require(blank >= 0 and known, "blank is no class", expected=f"0 to {classes} - 1", found=blank)
    return count


OF_SEQUENCES = "log_probs=.n targets=n. input_lengths=n target_lengths=n"


@op(axes=terms(f"{OF_SEQUENCES} -> n"))
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


@op(axes=terms(f"dy=n {OF_SEQUENCES} -> .n"))
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
    fits = shapes_compatible(dy.shape, (count,)) and dy.dtype == log_probs.dtype
    require(fits, "dy does not fit", expected=str(log_probs.with_shape((count,))), found=str(dy))
    return log_probs
