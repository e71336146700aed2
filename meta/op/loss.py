"""Losses and their derivatives. Every loss is the mean, a 0-d tensor; the target comes first.

Class labels are integers. A row whose label is -100, torch's ``ignore_index``, is left out of the
sum and of the count. On the CPU another label outside [0, c) is an IndexOutOfRange. On CUDA it is
one with META_CHECK_INDICES; without, such a row is left out, too. The loss of no rows is NaN.
"""

from meta.base import dtype as dtypes
from meta.base.errors import TypeInferError
from meta.op.core import Tensor, op
from meta.op.core.check import require, require_float
from meta.op.core.indices import IndexRange
from meta.op.core.same_dtype import require_same_dtype

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


def _check_dy(dy: Tensor, y_pred: Tensor) -> None:
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


@op(schema=smooth_l1_loss)
def smooth_l1_loss_dtrue(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Derivative of `smooth_l1_loss` by y_true: ``clip(y_true - y_pred, -1, 1) / size``.

    To be multiplied by the gradient of the loss. Result: type of y_true.
    """
    _check_pair(y_true, y_pred)
    return y_true


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
    _check_labels(y_true, y_pred)
    _check_dy(dy, y_pred)
    return y_pred


@op(schema=nll_loss_dpred)
def nll_loss_dtrue(dy: Tensor, y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Gradient of `nll_loss` by the labels: zeros, type of y_true; they take whole numbers only."""
    _check_labels(y_true, y_pred)
    _check_dy(dy, y_pred)
    return y_true


@op(schema=nll_loss, indices=_classes)
def cross_entropy(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Cross entropy of a softmax: `nll_loss` of ``log_softmax(y_pred, axis=1)``.

    y_true: labels (n,), any integer dtype. y_pred: logits (n, c), floating point.
    Result: shape (), dtype of y_pred, computed in at least float32. Labels are as in `nll_loss`.
    """
    _check_labels(y_true, y_pred)
    return y_pred.with_shape(())


@op(schema=nll_loss_dpred, indices=_classes)
def cross_entropy_dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Gradient of `cross_entropy` by y_pred: ``(softmax(y_pred, 1) - hot) * dy / count``.

    dy: gradient of the loss, shape (). hot: 1 at each row's label, else 0. count: the rows not left
    out; the gradient of those left out is 0. Result: type of y_pred.
    """
    _check_labels(y_true, y_pred)
    _check_dy(dy, y_pred)
    return y_pred


@op(schema=nll_loss_dpred)
def cross_entropy_dtrue(dy: Tensor, y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Gradient of `cross_entropy` by the labels: zeros, type of y_true. See `nll_loss_dtrue`."""
    _check_labels(y_true, y_pred)
    _check_dy(dy, y_pred)
    return y_true
