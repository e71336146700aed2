"""Cross entropy of a fully connected layer, whose scores are never all in memory.

A language model's scores, one for each word of the vocabulary, are its largest array by far. Here
a kernel has those of some classes at a time, in the forward pass and, computed once more, in the
backward pass: four products of matrices instead of three. Operators give a loss for each row and
its logsumexp, of which both are differentiable: whatever else of a loss is asked for is composed.
"""

from __future__ import annotations

from typing import Any

from meta import op as operators
from meta.base.dtype import is_float
from meta.ir.types import TensorType
from meta.op.core import Tensor, Weight, op
from meta.op.core.axes import terms
from meta.op.core.check import (
    require,
    require_float,
    require_like,
    require_ndim,
    require_same_dtype,
    shapes_compatible,
)
from meta.op.core.function import as_operand, function
from meta.op.core.indices import IndexRange
from meta.op.loss import IGNORED, cross_entropy
from meta.op.loss_calls import labels_without
from meta.op.loss_reduction import (
    check_reduction,
    loss_error,
    reduce_loss,
    require_floating,
    result_dtype,
    type_text,
)
from meta.op.loss_reduction import in_compute_dtype as widened
from meta.op.products import linear


def _classes(linear_weight: Tensor) -> tuple[IndexRange, ...]:
    """Say what the labels may be."""
    into = "the classes, axis 0 of linear_weight"
    return (IndexRange("target", linear_weight.shape[0], into, also=IGNORED),)


def _of_rows(
    x: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None
) -> TensorType:
    """Check the arguments; return the type of a number for each row."""
    require_ndim(x, 2, "x")
    require_ndim(linear_weight, 2, "linear_weight")
    require_ndim(target, 1, "target")
    require_float(x, "x")
    found = f"x={x}, linear_weight={linear_weight}, target={target}, linear_bias={linear_bias}"
    require_same_dtype(*(t for t in (x, linear_weight, linear_bias) if t is not None))
    require("int" in target.dtype, "labels must be integers", expected="int64", found=found)
    require(linear_weight.shape[0] != 0, "there is no class", expected="c >= 1", found=found)
    (n, features), (classes, own) = x.shape, linear_weight.shape
    what = "x and linear_weight differ in their last axis"
    require(
        shapes_compatible((features,), (own,)),
        what,
        expected="x[n, d], linear_weight[c, d]",
        found=found,
    )
    what = "there must be one label per row"
    require(shapes_compatible(target.shape, (n,)), what, expected=f"target[{n}]", found=found)
    fits = linear_bias is None or shapes_compatible(linear_bias.shape, (classes,))
    require(fits, "linear_bias does not fit", expected=f"linear_bias[{classes}]", found=found)
    return x.with_shape((n,)).with_dtype("float64" if x.dtype == "float64" else "float32")


@op(axes=terms("x=r target=r -> r"), indices=_classes)
def linear_cross_entropies(
    x: Tensor, linear_weight: Weight, target: Tensor, linear_bias: Weight | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of `linear_cross_entropy` for each row, and the logsumexp of its scores.

    x: (n, d), floating point. linear_weight: (c, d), linear_bias: (c,), of the same dtype; the
    scores are ``x @ linear_weight.T + linear_bias``. target: labels (n,), any integer dtype.
    Results: ``logsumexp(scores, 1) - scores[i, target[i]]``, 0 for a row whose label is -100, NaN
    beside it where a score is infinite, as torch's; and the logsumexp of each row, which is
    infinite there; (n,), float64 if x is, else float32. Gradients flow through both, as
    of a penalty of the squared logsumexp (z-loss). Raises TypeInferError for other types, and
    IndexOutOfRange for labels that are no class: on CUDA with META_CHECK_INDICES only, without it
    their rows are left out.
    """
    rows = _of_rows(x, linear_weight, target, linear_bias)
    return rows, rows


@op(indices=_classes)
def linear_cross_entropies_dxwb(
    dloss: Tensor,
    dlogsumexp: Tensor,
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    logsumexp: Tensor,
    linear_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of `linear_cross_entropies` by x, linear_weight and, if there is one, linear_bias.

    dloss, dlogsumexp: gradients of its results, (n,), which logsumexp is the second of. Those of
    scores are ``exp(scores - logsumexp) * (dloss + dlogsumexp) - hot * dloss``, with hot 1 at each
    row's label, else 0; dloss counts as 0 where the label is -100. They are NaN where logsumexp is
    infinite. In half precision they are
    rounded once before the products. Results: types of x, linear_weight and linear_bias.
    """
    rows = _of_rows(x, linear_weight, target, linear_bias)
    for value, name in ((dloss, "dloss"), (dlogsumexp, "dlogsumexp"), (logsumexp, "logsumexp")):
        require_like(value, rows, f"{name} is not that of the rows")
    return (x, linear_weight) if linear_bias is None else (x, linear_weight, linear_bias)


@function
def linear_cross_entropy(
    x: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> Any:
    """Return ``cross_entropy(linear(x, linear_weight, linear_bias), target)``, without all scores
    in memory.

    x: (n, d), or (d,) with one label. linear_weight: (c, d). linear_bias: (c,). target: labels
    (n,); or probabilities (n, c), which are as large as the scores, and these are in memory then.
    weight, reduction, ignore_index, label_smoothing: as of `cross_entropy`. Result: dtype of x,
    computed in at least float32. `linear_cross_entropies` gives a loss and the logsumexp for each
    row. Arguments as torch's, but options: how many classes a kernel has at a time it says itself.
    Raises TypeInferError for arguments that do not fit, IndexOutOfRange for labels that are no
    class.

    >>> meta.linear_cross_entropy(meta.ones((2, 8)), meta.zeros((9, 8)), meta.array([1, 2])).shape
    ()
    """
    name = "linear_cross_entropy"
    x, linear_weight = require_floating(name, x=x, linear_weight=linear_weight)
    target = as_operand(target)
    check_reduction(name, reduction)
    options: dict[str, Any] = {
        "reduction": reduction,
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
    }
    if linear_weight.ndim != 2 or x.ndim not in (1, 2):
        raise loss_error(
            name,
            "x must be rows and linear_weight a matrix",
            expected="x[n, d], linear_weight[c, d]",
            found=f"x={type_text(x)}, linear_weight={type_text(linear_weight)}",
            hint="op.reshape(x, (-1, d)), and the labels of all rows: op.reshape(target, (-1,))",
        )
    if is_float(target.dtype):
        return cross_entropy(linear(x, linear_weight, linear_bias), target, weight, **options)
    if not 0 <= label_smoothing <= 1:
        what = "label_smoothing is a part of the target"
        raise loss_error(name, what, expected="0 to 1", found=label_smoothing)
    if x.ndim == 1:
        rows = operators.expand_dims(x, 0), linear_weight, operators.reshape(target, (-1,))
        loss = linear_cross_entropy(*rows, linear_bias=linear_bias, weight=weight, **options)
        return operators.squeeze(loss, 0) if reduction == "none" else loss
    return _of_labels(x, linear_weight, target, linear_bias, weight, options)


def _of_labels(
    x: Any, linear_weight: Any, target: Any, linear_bias: Any, weight: Any, options: dict[str, Any]
) -> Any:
    """Return the loss of integer labels, reduced."""
    name, classes = "linear_cross_entropy", linear_weight.shape[0]
    smoothing, reduction = options["label_smoothing"], options["reduction"]
    if linear_bias is not None:
        (linear_bias,) = require_floating(name, linear_bias=linear_bias)
    if "int" in target.dtype and target.dtype != "int64":
        target = operators.astype(target, "int64")
    if options["ignore_index"] != IGNORED and target.dtype == "int64":
        target = labels_without(target, options["ignore_index"], classes)
    loss, logsumexp = operators.linear_cross_entropies(x, linear_weight, target, linear_bias)
    # Where nothing looks at labels, others that are no class do not count either.
    counts = operators.greater_equal(target, 0)
    if isinstance(classes, int):
        counts = operators.logical_and(counts, operators.less(target, classes))
    share = operators.astype(counts, loss.dtype)
    if weight is not None:
        (weight,) = require_floating(name, weight=weight)
        if not shapes_compatible(weight.shape, (classes,)):
            expected = f"[{classes}], a factor for each class"
            raise loss_error(
                name, "weight does not fit", expected=expected, found=type_text(weight)
            )
        weight = operators.astype(weight, loss.dtype)
        labels = operators.where(counts, target, operators.zeros_like(target))
        share = operators.take(weight, labels) * share
        loss = loss * share
    if smoothing:
        spread = _spread(x, linear_weight, linear_bias, weight, logsumexp)
        spread = operators.where(counts, spread, 0.0)
        loss = loss * (1.0 - smoothing) + spread * smoothing
    dtype = result_dtype(x)
    if reduction != "mean":
        return reduce_loss(loss, reduction, dtype)
    return reduce_loss(operators.sum(loss) / operators.sum(share), "none", dtype)


def _spread(x: Any, linear_weight: Any, linear_bias: Any, weight: Any, logsumexp: Any) -> Any:
    """Return the mean over classes of ``weight * (logsumexp - scores)``, for each row.

    The mean of scores is the score of the mean class, for which no score is needed.
    """
    one_bias = None
    if weight is None:
        factor, one = 1.0, operators.mean(linear_weight, (0,))
        if linear_bias is not None:
            one_bias = operators.mean(linear_bias)
    else:
        factor = operators.mean(weight)
        share = weight / operators.sum(operators.ones_like(weight))
        own = operators.astype(share, linear_weight.dtype)
        one = operators.reshape(
            operators.matmul(operators.expand_dims(own, 0), linear_weight), (-1,)
        )
        if linear_bias is not None:
            one_bias = operators.sum(widened(linear_bias) * share)
    scores = operators.matmul(widened(x), widened(one))
    if one_bias is not None:
        scores = scores + widened(one_bias)
    return logsumexp * factor - scores
