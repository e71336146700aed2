"""What calls of losses take beyond their operators: `cross_entropy` and `nll_loss` in all forms
(any shape, probabilities, weights, smoothing), and weights of elements.

Where a mean without weights is asked for, a call is one of the operator, which is fused.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.methods import Overloads
from meta.op.core.check import shapes_compatible
from meta.op.core.function import as_operand
from meta.op.core.op import ComposedOp
from meta.op.core.tracing import Symbol
from meta.op.loss import DEFINED, IGNORED, cross_entropy, huber_loss, nll_loss, smooth_l1_loss
from meta.op.loss_reduction import (
    check_broadcast,
    check_reduction,
    class_indices,
    in_compute_dtype,
    loss_error,
    reduce_loss,
    require_floating,
    result_dtype,
    type_text,
)
from meta.runtime.ndarray import ndarray

NO_CLASS = -1


@nll_loss.calls
def _nll_loss(
    prediction: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Any:
    if weight is None and ignore_index == IGNORED and reduction == "mean":
        return _mean(nll_loss, prediction, target)
    prediction, target = as_operand(prediction), as_operand(target)
    return _of_labels(nll_loss, prediction, target, weight, ignore_index, reduction, 0.0)


@cross_entropy.calls
def _cross_entropy(
    prediction: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    plain = weight is None and ignore_index == IGNORED and label_smoothing == 0
    if plain and reduction == "mean" and not _is_float(target):
        return _mean(cross_entropy, prediction, target)
    prediction, target = as_operand(prediction), as_operand(target)
    if not 0 <= label_smoothing <= 1:
        what = "label_smoothing is a part of the target"
        raise loss_error("cross_entropy", what, expected="0 to 1", found=label_smoothing)
    if not is_float(target.dtype) or not is_float(prediction.dtype):
        return _of_labels(
            cross_entropy, prediction, target, weight, ignore_index, reduction, label_smoothing
        )
    if ignore_index != IGNORED:
        what = "ignore_index is a label, and the target is probabilities"
        raise loss_error("cross_entropy", what, expected="integer labels", found=type_text(target))
    return _of_probabilities(prediction, target, weight, reduction, label_smoothing)


def _is_float(target: Any) -> bool:
    """Whether a target, which may be a pattern or any object that becomes an array, is floats."""
    is_pattern = isinstance(target, Overloads) and not isinstance(target, ndarray | Symbol)
    return not is_pattern and is_float(as_operand(target).dtype)


def _mean(base: ComposedOp, prediction: Any, target: Any) -> Any:
    """Return the mean of the rows whose label is not `IGNORED`. A pattern stands for rows."""
    given = prediction, target
    if any(isinstance(x, Overloads) and not isinstance(x, ndarray | Symbol) for x in given):
        return base.plain(*given)
    prediction, target = map(as_operand, given)
    if (prediction.ndim, target.ndim) != (2, 1):
        _check(base.name, prediction, target, None)
        prediction, target = _rows(prediction), op.reshape(target, (-1,))
    return base.plain(prediction, target)


def _rows(prediction: Any) -> Any:
    """Return a row of scores for each label."""
    if prediction.ndim == 1:
        return op.expand_dims(prediction, 0)
    if prediction.ndim == 2:
        return prediction
    last = op.permute_dims(prediction, (0, *range(2, prediction.ndim), 1))
    return op.reshape(last, (-1, prediction.shape[1]))


def _check(name: str, prediction: Any, target: Any, weight: Any) -> None:
    """Raise TypeInferError unless the target is labels, one for each row, or probabilities."""
    found = f"prediction={type_text(prediction)}, target={type_text(target)}"
    floats = is_float(target.dtype)
    if not is_float(prediction.dtype):
        swapped = "the scores come first, then the labels: loss(scores, labels)"
        hint = swapped if floats else None
        raise loss_error(name, "prediction must be floating point", found=found, hint=hint)
    if prediction.ndim == 0:
        what = "prediction has no axis of classes"
        raise loss_error(name, what, expected="(n, c, ...) or (c,)", found=found)
    axis = _axis(prediction)
    if prediction.shape[axis] == 0:
        raise loss_error(name, "prediction has no class", expected="c >= 1", found=found)
    one = (*prediction.shape[:axis], *prediction.shape[axis + 1 :])
    if floats and name == "nll_loss":
        raise loss_error(name, "labels must be integers", expected="class indices", found=found)
    if target.dtype == "bool":
        raise loss_error(name, "labels must be integers", expected="class indices", found=found)
    if floats and not shapes_compatible(target.shape, prediction.shape):
        what = "probabilities have the shape of the prediction; labels are integers"
        raise loss_error(name, what, expected=str(list(prediction.shape)), found=found)
    if not floats and not shapes_compatible(target.shape, one):
        what = "there must be one label per row"
        raise loss_error(
            name,
            what,
            expected=f"target{list(one)}",
            found=found,
            hint=_hint(*_shapes(prediction, target)),
        )
    if weight is not None and not shapes_compatible(weight.shape, (prediction.shape[axis],)):
        expected = f"[{prediction.shape[axis]}], a factor for each class"
        raise loss_error(name, "weight does not fit", expected=expected, found=type_text(weight))


def _shapes(prediction: Any, target: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(prediction.shape), tuple(target.shape)


def _hint(prediction: tuple[Any, ...], target: tuple[Any, ...]) -> str | None:
    if prediction == target:
        return "labels are class indices: op.argmax(labels, 1) of one-hot ones"
    if len(prediction) > 2 and prediction[:-1] == target:
        order = (0, len(prediction) - 1, *range(1, len(prediction) - 1))
        return f"the classes are on axis 1: op.permute_dims(scores, {order})"
    return None


def _axis(prediction: Any) -> int:
    return 1 if prediction.ndim > 1 else 0


def _of_labels(
    base: ComposedOp,
    prediction: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Any:
    """Return the loss of integer labels."""
    name, dtype = base.name, result_dtype(prediction)
    check_reduction(name, reduction)
    if weight is not None:
        (weight,) = require_floating(name, weight=weight)
    _check(name, prediction, target, weight)
    target = target if target.dtype == "int64" else op.astype(target, "int64")
    if weight is None and not smoothing and reduction == "mean":
        target = labels_without(target, ignore_index, prediction.shape[_axis(prediction)])
        return base.plain(_rows(prediction), op.reshape(target, (-1,)))
    axis, logs = _axis(prediction), in_compute_dtype(prediction)
    if base is cross_entropy:
        logs = op.log_softmax(logs, axis)
    counts, classes = target != ignore_index, prediction.shape[axis]
    labels = class_indices(op.where(counts, target, 0), classes)
    # Where nothing looks at indices, other labels do not count either.
    counts = op.logical_and(counts, target >= 0)
    if isinstance(classes, int):
        counts = op.logical_and(counts, target < classes)
    if weight is None:
        share = op.astype(counts, logs.dtype)
    else:
        weight = op.astype(weight, logs.dtype) if weight.dtype != logs.dtype else weight
        share = op.where(counts, op.take(weight, labels), 0.0)
    picked = op.squeeze(op.take_along_axis(logs, op.expand_dims(labels, axis), axis), axis)
    loss = op.where(counts, -picked * share, 0.0)
    if smoothing:
        spread = op.where(counts, -op.mean(_weighted(logs, weight), axis), 0.0)
        loss = loss * (1.0 - smoothing) + spread * smoothing
    if reduction != "mean":
        return reduce_loss(loss, reduction, dtype)
    return reduce_loss(op.sum(loss) / op.sum(share), "none", dtype)


def labels_without(target: Any, ignore_index: int, classes: Any) -> Any:
    """Return labels with `IGNORED` for one that is left out instead, and no class for the others
    that are none: -100 is such a one here.
    """
    target = target if target.dtype == "int64" else op.astype(target, "int64")
    counts = target != ignore_index
    found = class_indices(op.where(counts, target, 0), classes)
    labels = op.where(found == target, target, NO_CLASS)
    return op.where(counts, labels, IGNORED)


def _weighted(logs: Any, weight: Any) -> Any:
    """Return the logarithms times the factor of their class."""
    if weight is None:
        return logs
    behind = (1,) * (logs.ndim - 1 - _axis(logs))
    return logs * op.reshape(weight, (-1, *behind))


def _of_probabilities(
    prediction: Any, target: Any, weight: Any, reduction: str, smoothing: float
) -> Any:
    """Return the cross entropy of probabilities."""
    check_reduction("cross_entropy", reduction)
    if weight is not None:
        (weight,) = require_floating("cross_entropy", weight=weight)
    _check("cross_entropy", prediction, target, weight)
    axis, dtype = _axis(prediction), result_dtype(prediction, target)
    logs = op.log_softmax(in_compute_dtype(prediction), axis)
    if weight is not None:
        weight = op.astype(weight, logs.dtype) if weight.dtype != logs.dtype else weight
    logs = _weighted(logs, weight)
    loss = -op.sum(logs * in_compute_dtype(target), axis)
    if smoothing:
        loss = loss * (1.0 - smoothing) - op.mean(logs, axis) * smoothing
    return reduce_loss(loss, reduction, dtype)


# Losses of elements with what a call takes beyond the operator: weights, and `smooth_l1_loss`.


def _by_weight(base: ComposedOp) -> None:
    """Let a loss take weights, by whose sum a mean is divided."""

    @base.calls
    def call(prediction: Any, target: Any, reduction: str = "mean", *, weight: Any = None) -> Any:
        check_reduction(base.name, reduction)
        if weight is None:
            return base.plain(prediction, target, reduction)
        p, t, w = require_floating(base.name, prediction=prediction, target=target, weight=weight)
        _check_weight(base.name, w, t)
        dtype = result_dtype(p, t)
        loss = base.plain(in_compute_dtype(p), in_compute_dtype(t), "none") * in_compute_dtype(w)
        if reduction == "mean":
            return reduce_loss(op.sum(loss) / op.sum(in_compute_dtype(w)), "none", dtype)
        return reduce_loss(loss, reduction, dtype)


def _check_weight(name: str, weight: Any, target: Any) -> None:
    if not shapes_compatible(weight.shape, target.shape):
        expected = f"the target's shape, {list(target.shape)}"
        raise loss_error(name, "weight does not fit", expected=expected, found=type_text(weight))


_by_weight(DEFINED["mse_loss"])
_by_weight(DEFINED["l1_loss"])


@huber_loss.calls
def _huber_loss(
    prediction: Any,
    target: Any,
    reduction: str = "mean",
    delta: float = 1.0,
    *,
    weight: Any = None,
) -> Any:
    check_reduction("huber_loss", reduction)
    if weight is None:
        return huber_loss.plain(prediction, target, reduction, delta)
    p, t, w = require_floating("huber_loss", prediction=prediction, target=target, weight=weight)
    _check_weight("huber_loss", w, t)
    loss = huber_loss.plain(
        in_compute_dtype(p), in_compute_dtype(t), "none", delta
    ) * in_compute_dtype(w)
    return reduce_loss(loss, reduction, result_dtype(p, t))


@smooth_l1_loss.calls
def _smooth_l1_loss(
    prediction: Any, target: Any, reduction: str = "mean", beta: float = 1.0
) -> Any:
    check_reduction("smooth_l1_loss", reduction)
    if reduction == "mean" and beta == 1:
        return smooth_l1_loss.plain(prediction, target)
    if beta < 0:
        raise loss_error("smooth_l1_loss", "beta must not be negative", found=beta)
    p, t = require_floating("smooth_l1_loss", prediction=prediction, target=target)
    _check_pair("smooth_l1_loss", p, t)
    if beta == 0:
        return op.l1_loss(p, t, reduction)
    loss = huber_loss.plain(
        in_compute_dtype(p), in_compute_dtype(t), reduction, float(beta)
    ) / float(beta)
    return reduce_loss(loss, "none", result_dtype(p, t))


def _check_pair(name: str, prediction: Any, target: Any) -> None:
    if not shapes_compatible(prediction.shape, target.shape):
        found = f"prediction={type_text(prediction)}, target={type_text(target)}"
        raise loss_error(name, "prediction and target differ", expected="one shape", found=found)


def _elementwise(name: str, prediction: Any, target: Any, **factors: Any) -> list[Any]:
    """Return the arguments of a binary cross entropy; a factor that is not given is None."""
    given = {n: x for n, x in factors.items() if x is not None}
    p, t, *rest = require_floating(name, prediction=prediction, target=target, **given)
    _check_pair(name, p, t)
    for argument, x in zip(given, rest, strict=True):
        check_broadcast(name, argument, x, p.shape)
    found = dict(zip(given, rest, strict=True))
    return [p, t, *(found.get(n) for n in factors)]


@DEFINED["binary_cross_entropy"].calls
def _binary_cross_entropy(
    prediction: Any, target: Any, reduction: str = "mean", *, weight: Any = None
) -> Any:
    name = "binary_cross_entropy"
    check_reduction(name, reduction)
    if weight is None:
        return DEFINED[name].plain(prediction, target, reduction)
    p, t, w = _elementwise(name, prediction, target, weight=weight)
    loss = DEFINED[name].plain(in_compute_dtype(p), in_compute_dtype(t), "none") * in_compute_dtype(
        w
    )
    return reduce_loss(loss, reduction, result_dtype(p, t))


@DEFINED["binary_cross_entropy_with_logits"].calls
def _binary_cross_entropy_with_logits(
    prediction: Any,
    target: Any,
    reduction: str = "mean",
    *,
    weight: Any = None,
    pos_weight: Any = None,
) -> Any:
    name = "binary_cross_entropy_with_logits"
    check_reduction(name, reduction)
    if weight is None and pos_weight is None:
        return DEFINED[name].plain(prediction, target, reduction)
    p, t, w, positive = _elementwise(name, prediction, target, weight=weight, pos_weight=pos_weight)
    x, truth, dtype = in_compute_dtype(p), in_compute_dtype(t), result_dtype(p, t)
    if positive is None:
        loss = DEFINED[name].plain(x, truth, "none")
    else:
        factor = (in_compute_dtype(positive) - 1.0) * truth + 1.0
        loss = (1.0 - truth) * x - factor * op.logsigmoid(x)
    return reduce_loss(loss if w is None else loss * in_compute_dtype(w), reduction, dtype)
