"""The cross entropy of labels as one operator of a graph, and its gradient as another.

PyTorch has an operator for neither: to AOTAutograd a cross entropy is a log_softmax and the
likelihood of labels, and its gradient is theirs, with arrays of the size of the scores between
them. Where a graph is no program, these run in PyTorch.

Scores have their classes on the axis ``dim``. Labels are in any shape of as many elements as there
are scores of a class, in their order. ``dtype`` is that of the loss: the scores are cast to it
where it is the wider one. ``reduction`` is torch's number of it. Where ``classes`` is given, the
scores of others behind them are padding, and have no gradient.

Beside the loss there are, of the scores of each label, the largest, and the sum of the exponentials
of all less that, in at least float32: (n,), or (n, m) where m labels share the axes behind ``dim``.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from meta.frontend.aten.definitions import define

REDUCTIONS = ("none", "mean", "sum")
"""By torch's numbers of them."""


def _flat(
    x: Tensor, target: Tensor, dim: int, dtype: torch.dtype, classes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores of classes as (n, c, m), of the dtype that is computed in, their logarithms,
    and labels as (n, m).
    """
    if classes is not None:
        x = x.narrow(dim, 0, classes)
    outer, inner = prod(x.shape[:dim]), prod(x.shape[dim + 1 :])
    scores = x.reshape(outer, x.shape[dim], inner).to(torch.promote_types(x.dtype, dtype))
    return scores, functional.log_softmax(scores, 1), target.reshape(outer, inner)


def _forward(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    dim: int,
    reduction: int,
    ignore_index: int,
    dtype: torch.dtype,
    classes: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    scores, logs, labels = _flat(x, target, dim, dtype, classes)
    kind = REDUCTIONS[reduction]
    logs = logs.to(dtype)
    loss = functional.nll_loss(logs, labels, weight, ignore_index=ignore_index, reduction=kind)
    loss = loss.reshape(target.shape) if kind == "none" else loss
    return loss, *_statistics(scores, dtype)


def _fake_forward(
    x: Tensor, target: Tensor, _weight: Any, dim: int, reduction: int, _ignore_index: int,
    dtype: torch.dtype, _classes: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    shape, wide = _of_rows(x, dim, dtype)
    loss = x.new_empty(target.shape if REDUCTIONS[reduction] == "none" else (), dtype=dtype)
    return loss, x.new_empty(shape, dtype=wide), x.new_empty(shape, dtype=wide)


def _of_rows(x: Tensor, dim: int, dtype: torch.dtype) -> tuple[list[Any], torch.dtype]:
    """Return the shape and the dtype of what there is of the scores of each label."""
    outer, inner = prod(x.shape[:dim]), prod(x.shape[dim + 1 :])
    shape = [outer] if type(inner) is int and inner == 1 else [outer, inner]
    return shape, torch.promote_types(torch.promote_types(x.dtype, dtype), torch.float32)


def _statistics(scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape, wide = _of_rows(scores, 1, dtype)
    scores = scores.to(wide)
    largest = scores.amax(1, keepdim=True)
    total = (scores - largest).exp().sum(1)
    return largest.reshape(shape), total.reshape(shape)


def _backward(
    dy: Tensor,
    x: Tensor,
    target: Tensor,
    _largest: Tensor,
    _total: Tensor,
    weight: Tensor | None,
    dim: int,
    reduction: int,
    ignore_index: int,
    dtype: torch.dtype,
    classes: int | None = None,
) -> Tensor:
    _, logs, labels = _flat(x, target, dim, dtype, classes)
    counted, kind = labels != ignore_index, REDUCTIONS[reduction]
    labels = labels.long().where(counted, 0)
    share = torch.ones_like(labels, dtype=logs.dtype) if weight is None else weight[labels]
    share = share.where(counted, 0)
    dy = dy.reshape(labels.shape) if kind == "none" else dy
    share = (share * dy / (share.sum() if kind == "mean" else 1)).where(counted, 0).unsqueeze(1)
    dx = (logs.exp() * share).scatter_add(1, labels.unsqueeze(1), -share.to(logs.dtype))
    found: Tensor = dx.to(x.dtype).reshape(*x.shape[:dim], dx.shape[1], *x.shape[dim + 1 :])
    return found


def _fake_backward(
    _dy: Tensor, x: Tensor, _target: Tensor, _largest: Tensor, _total: Tensor, _weight: Any,
    dim: int, _reduction: int, _ignore_index: int, _dtype: torch.dtype, classes: int | None = None,
) -> Tensor:  # fmt: skip
    count = x.shape[dim] if classes is None else classes
    return x.new_empty((*x.shape[:dim], count, *x.shape[dim + 1 :]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, target, weight, *ctx.options = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, target, *output[1:], weight)


def _differentiate(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return CROSS_ENTROPY_BACKWARD(dy, *ctx.saved_tensors, *ctx.options), *[None] * 7


_OPTIONS = (
    "Tensor? weight, int dim, int reduction, SymInt ignore_index, ScalarType dtype, "
    "int? classes=None"
)
CROSS_ENTROPY = define(
    f"cross_entropy(Tensor x, Tensor target, {_OPTIONS}) -> "
    "(Tensor loss, Tensor largest, Tensor total)",
    _forward,
    _fake_forward,
    (_differentiate, _save),
)
CROSS_ENTROPY_BACKWARD = define(
    "cross_entropy_backward(Tensor dy, Tensor x, Tensor target, Tensor largest, Tensor total, "
    f"{_OPTIONS}) -> Tensor",
    _backward,
    _fake_backward,
)
