"""Losses that compare two tensors element by element, and their derivatives by the prediction.

The target comes first. ``reduction`` says what becomes of the elements: "mean" and "sum" give a
0-d tensor (the mean of nothing is NaN), "none" leaves them. Add a loss as a pair: the loss, and
``<loss>_dpred``, which is its gradient multiplied by that of the result in one pass.
"""

from meta.op.core import Tensor, op
from meta.op.core.check import require, require_float
from meta.op.core.same_dtype import require_same_dtype

_REDUCTIONS = ("mean", "sum", "none")


def _loss(
    y_true: Tensor, y_pred: Tensor, reduction: str, allowed: tuple[str, ...] = _REDUCTIONS
) -> Tensor:
    """Check the arguments of a loss; return its type."""
    require_float(y_pred, "y_pred")
    require_same_dtype(y_true, y_pred)
    found = f"y_true={y_true}, y_pred={y_pred}"
    require(y_true == y_pred, "y_true and y_pred differ", expected="one shape", found=found)
    known = ", ".join(allowed)
    require(reduction in allowed, "there is no such reduction", expected=known, found=reduction)
    return y_pred if reduction == "none" else y_pred.with_shape(())


def _dpred(dy: Tensor, loss: Tensor, y_pred: Tensor) -> Tensor:
    """Check the gradient of a loss of a type; return the type of y_pred's gradient."""
    fits = dy == loss or not (dy.is_static and loss.is_static)
    require(fits, "dy does not fit", expected=f"the gradient of the loss, {loss}", found=str(dy))
    return y_pred


@op
def mse_loss(y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
    """Squared error: ``(y_pred - y_true)**2``, reduced.

    y_true, y_pred: floating point, one shape and dtype. reduction: "mean", "sum" or "none".
    Result: their dtype, of shape (), for "none" of theirs; computed in at least float32.
    Raises TypeInferError if types differ or there is no such reduction.
    """
    return _loss(y_true, y_pred, reduction)


@op
def mse_loss_dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
    """Gradient of `mse_loss` by y_pred: ``2 * (y_pred - y_true) * dy``, over the size for "mean".

    dy: gradient of the loss, of its type. Other arguments as there. Result: type of y_pred.
    """
    return _dpred(dy, _loss(y_true, y_pred, reduction), y_pred)


@op(schema=mse_loss)
def l1_loss(y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute error: ``|y_pred - y_true|``, reduced. Arguments and result as of `mse_loss`."""
    return _loss(y_true, y_pred, reduction)


@op(schema=mse_loss_dpred)
def l1_loss_dpred(dy: Tensor, y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
    """Gradient of `l1_loss` by y_pred: ``sign(y_pred - y_true) * dy``, over the size for "mean".

    The sign of 0 and of NaN is 0, as torch's. dy: gradient of the loss. Result: type of y_pred.
    """
    return _dpred(dy, _loss(y_true, y_pred, reduction), y_pred)


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


@op
def huber_loss_dpred(
    dy: Tensor, y_true: Tensor, y_pred: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Gradient of `huber_loss` by y_pred: ``clip(y_pred - y_true, -delta, delta) * dy``.

    Over the size for "mean". dy: gradient of the loss, of its type. Result: type of y_pred.
    """
    require(delta > 0, "delta must be positive", found=delta)
    return _dpred(dy, _loss(y_true, y_pred, reduction), y_pred)


def _divergence(y_true: Tensor, y_pred: Tensor, reduction: str) -> Tensor:
    axis = reduction != "batchmean" or y_pred.ndim > 0
    require(axis, "batchmean needs an axis of the batch", expected="ndim >= 1", found=str(y_pred))
    return _loss(y_true, y_pred, reduction, (*_REDUCTIONS, "batchmean"))


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
    return _divergence(y_true, y_pred, reduction)


@op
def kl_div_dpred(
    dy: Tensor,
    y_true: Tensor,
    y_pred: Tensor,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Gradient of `kl_div` by y_pred: ``-y_true * dy``, or ``-exp(y_true) * dy`` with log_target.

    Over the size for "mean", over the extent of axis 0 for "batchmean". dy: gradient of the loss,
    of its type. Result: type of y_pred.
    """
    return _dpred(dy, _divergence(y_true, y_pred, reduction), y_pred)


@op(schema=mse_loss)
def binary_cross_entropy(y_true: Tensor, y_pred: Tensor, reduction: str = "mean") -> Tensor:
    """``-(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred))``, reduced.

    y_pred: probabilities; a logarithm below -100 counts as -100, so that 0 and 1 give a finite
    loss (torch's rule). Outside [0, 1] the loss is NaN. y_true: probabilities as well, 0 and 1
    among them. Other arguments and the result as of `mse_loss`.
    """
    return _loss(y_true, y_pred, reduction)


@op(schema=mse_loss_dpred)
def binary_cross_entropy_dpred(
    dy: Tensor, y_true: Tensor, y_pred: Tensor, reduction: str = "mean"
) -> Tensor:
    """Gradient of `binary_cross_entropy` by y_pred: ``(y_pred - y_true) / (y_pred * (1 - y_pred))``

    times dy, over the size for "mean"; the denominator is at least 1e-12, as torch's.
    dy: gradient of the loss, of its type. Result: type of y_pred.
    """
    return _dpred(dy, _loss(y_true, y_pred, reduction), y_pred)


@op(schema=mse_loss)
def binary_cross_entropy_with_logits(
    y_true: Tensor, y_pred: Tensor, reduction: str = "mean"
) -> Tensor:
    """`binary_cross_entropy` of ``sigmoid(y_pred)``, without overflow.

    An element is ``(1 - y_true) * y_pred + max(-y_pred, 0) + log(1 + exp(-|y_pred|))``.
    y_pred: logits, any real numbers. Other arguments and the result as of `mse_loss`.
    """
    return _loss(y_true, y_pred, reduction)


@op(schema=mse_loss_dpred)
def binary_cross_entropy_with_logits_dpred(
    dy: Tensor, y_true: Tensor, y_pred: Tensor, reduction: str = "mean"
) -> Tensor:
    """Gradient of `binary_cross_entropy_with_logits` by y_pred: ``(sigmoid(y_pred) - y_true) * dy``

    over the size for "mean". dy: gradient of the loss, of its type. Result: type of y_pred.
    """
    return _dpred(dy, _loss(y_true, y_pred, reduction), y_pred)
