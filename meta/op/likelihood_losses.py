"""Negative logarithms of likelihoods, composed of operators; names and arguments as torch's.

``reduction`` is "mean", "sum" or "none". Half precision is computed in float32. Arguments that
belong together have as many axes, of one extent or of 1; others raise TypeInferError.
"""

from __future__ import annotations

import math
from typing import Any

from meta import op
from meta.op.core.function import as_operand, function
from meta.op.loss_reduction import (
    check_broadcast,
    check_broadcastable,
    check_reduction,
    in_compute_dtype,
    loss_error,
    reduce_loss,
    require_floating,
    result_dtype,
)


@function
def gaussian_nll_loss(
    prediction: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Return ``0.5 * (log(var) + (prediction - target)**2 / var)``, reduced: of a normal
    distribution.

    prediction, target: floating point. var: the variance, a number, or of their shape, perhaps
    without the last axis; below eps it counts as eps, where its gradient is that at eps; a negative
    one makes the loss NaN. full: with the constant ``0.5 * log(2 pi)``. Nix and Weigend,
    "Estimating the mean and variance of the target probability distribution", 1994.
    """
    name = "gaussian_nll_loss"
    check_reduction(name, reduction)
    if not eps > 0:
        raise loss_error(name, "eps must be positive", found=eps)
    p, t = require_floating(name, prediction=prediction, target=target)
    dtype = result_dtype(p, t)
    check_broadcastable(name, prediction=p, target=t)
    difference = in_compute_dtype(p) - in_compute_dtype(t)
    if isinstance(var, int | float):
        if var < 0:
            raise loss_error(name, "the variance is negative", found=var)
        bounded: Any = op.full_like(difference, max(float(var), eps))
    else:
        (var,) = require_floating(name, var=var)
        if var.ndim == p.ndim - 1:
            var = op.expand_dims(var, -1)
        check_broadcastable(name, prediction=p, var=var)
        check_broadcast(name, "var", var, tuple(difference.shape))
        dtype, var = result_dtype(p, t, var), in_compute_dtype(var)
        # What is added up to the bound is no part of the gradient.
        bounded = var + _constant(op.clip(eps - var, 0.0))
        bounded = op.where(var < 0, math.nan, bounded)
    loss = 0.5 * (op.log(bounded) + difference * difference / bounded)
    return reduce_loss(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, dtype)


def _constant(x: Any) -> Any:
    """Return x without its gradient: bits have none."""
    bits = {"float32": "int32", "float64": "int64"}[x.dtype]
    return op.reinterpret(op.reinterpret(x, bits), x.dtype)


@function
def poisson_nll_loss(
    prediction: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Return ``exp(prediction) - target * prediction``, reduced: of a Poisson distribution.

    prediction: the logarithm of the rate, floating point; without log_input the rate itself, and an
    element is ``prediction - target * log(prediction + eps)``. target: counts, floating point.
    full: with Stirling's approximation of ``log(target!)``,
    ``target * log(target) - target + 0.5 * log(2 pi target)``, where the target is above 1.
    """
    name = "poisson_nll_loss"
    check_reduction(name, reduction)
    p, t = require_floating(name, prediction=prediction, target=target)
    check_broadcastable(name, prediction=p, target=t)
    x, counts = in_compute_dtype(p), in_compute_dtype(t)
    loss = op.exp(x) - counts * x if log_input else x - counts * op.log(x + eps)
    if full:
        above = op.where(counts > 1, counts, 2.0)
        stirling = above * op.log(above) - above + 0.5 * op.log(2 * math.pi * above)
        loss = loss + op.where(counts > 1, stirling, 0.0)
    return reduce_loss(loss, reduction, result_dtype(p, t))


@function
def soft_margin_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """Return ``log(1 + exp(-target * prediction))``, reduced, without overflow.

    prediction: floating point. target: 1 or -1, of its shape; may be integers.
    """
    name = "soft_margin_loss"
    check_reduction(name, reduction)
    (p,) = require_floating(name, prediction=prediction)
    x, target = in_compute_dtype(p), as_operand(target)
    target = target if target.dtype == x.dtype else op.astype(target, x.dtype)
    check_broadcastable(name, prediction=p, target=target)
    return reduce_loss(-op.logsigmoid(target * x), reduction, result_dtype(p))


@function
def multilabel_soft_margin_loss(
    prediction: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """Return the binary cross entropy of logits, its mean over the last axis, reduced.

    prediction: logits, (..., c), floating point. target: 0 or 1, of its shape; may be integers.
    weight: factors that are broadcast, as a rule one for each class.
    """
    name = "multilabel_soft_margin_loss"
    check_reduction(name, reduction)
    (p,) = require_floating(name, prediction=prediction)
    x, target = in_compute_dtype(p), as_operand(target)
    if p.ndim == 0:
        raise loss_error(name, "prediction has no axis of classes", expected="(..., c)", found="[]")
    target = target if target.dtype == x.dtype else op.astype(target, x.dtype)
    check_broadcastable(name, prediction=p, target=target)
    loss = -(target * op.logsigmoid(x) + (1.0 - target) * op.logsigmoid(-x))
    if weight is not None:
        (weight,) = require_floating(name, weight=weight)
        check_broadcast(name, "weight", weight, tuple(loss.shape))
        loss = loss * op.astype(weight, loss.dtype)
    return reduce_loss(op.mean(loss, -1), reduction, result_dtype(p))
