"""Converters of normalisation, softmax and dropout."""

from __future__ import annotations

import math
from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible, known
from meta.frontend.relax.registry import relax
from meta.op.core.op import Op


@relax("nn.softmax", op.softmax)
def softmax(x: Any, *, axis: int) -> Any:
    return op.softmax(x, axis)


@relax("nn.log_softmax", op.log_softmax)
def log_softmax(x: Any, *, axis: int) -> Any:
    return op.log_softmax(x, axis)


@relax("nn.dropout", op._contrib_dropout)
def dropout(x: Any, *, rate: float, call: CallSite) -> Any:
    """(y, mask), the mask in the dtype of x; without training nothing is dropped."""
    if not call.training:
        return x, op.ones_like(x)
    y, mask, _ = op._contrib_dropout(x, rate)
    return y, op.cast(mask, x.dtype)


@relax("nn.batch_norm", op.batch_norm_train, op.batch_norm_infer)
def batch_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    *,
    axis: int,
    epsilon: float,
    center: bool,
    scale: bool,
    momentum: float,
    training: bool,
    call: CallSite,
) -> Any:
    """(y, running mean, running variance).

    A model in train mode writes the running statistics, where they are state of the model. A
    program that asks for training itself returns them instead, the variance being the biased one.
    """
    w, b = gamma if scale else None, beta if center else None
    options = momentum, epsilon, axis
    if training:
        return _by_batch(x, mean, variance, w, b, *options)
    if call.training and known(mean) is None and known(variance) is None:
        return op.batch_norm_train(x, mean, variance, w, b, *options)
    return op.batch_norm_infer(x, mean, variance, w, b, *options), mean, variance


def _by_batch(
    x: Any, mean: Any, variance: Any, w: Any, b: Any, momentum: float, epsilon: float, axis: int
) -> tuple[Any, Any, Any]:
    axes = tuple(a for a in range(x.ndim) if a != axis % x.ndim)
    now = op.mean(x, axes), op.var(x, axes, correction=0)
    y = op.batch_norm_infer(x, *now, w, b, momentum, epsilon, axis)
    old = (op.multiply(v, 1 - momentum) for v in (mean, variance))
    return y, *(op.add(o, op.multiply(n, momentum)) for o, n in zip(old, now, strict=True))


def _trailing(name: str, axes: tuple[int, ...], ndim: int) -> int:
    """Return the first of the axes, which must be the last ones of the tensor."""
    places = sorted(a % ndim for a in axes)
    if places != list(range(ndim - len(places), ndim)):
        raise Unconvertible(f"{name} over axes that are not the last ones is not supported")
    return places[0]


def _as_one_axis(function: Op, x: Any, first: int, *parameters: Any, eps: float) -> Any:
    """Normalise over the axes from ``first`` on."""
    if first == x.ndim - 1:
        return function(x, *parameters, axis=-1, eps=eps)
    row = math.prod(x.shape[first:])
    flat = [None if p is None else op.reshape(p, (row,)) for p in parameters]
    y = function(op.reshape(x, (*x.shape[:first], row)), *flat, axis=-1, eps=eps)
    return op.reshape(y, x.shape)


@relax("nn.layer_norm", op.layer_norm)
def layer_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    *,
    axes: tuple[int, ...],
    epsilon: float,
    center: bool,
    scale: bool,
) -> Any:
    first = _trailing("layer_norm", axes, x.ndim)
    parameters = (gamma if scale else None, beta if center else None)
    return _as_one_axis(op.layer_norm, x, first, *parameters, eps=epsilon)


@relax("nn.rms_norm", op.rms_norm)
def rms_norm(x: Any, weight: Any, *, axes: tuple[int, ...], epsilon: float) -> Any:
    first = _trailing("rms_norm", axes, x.ndim)
    return _as_one_axis(op.rms_norm, x, first, weight, eps=epsilon)


def _are_channels_and_rest(x: Any, channel_axis: int, axes: tuple[int, ...]) -> bool:
    """Whether the channels are on axis 1, and the axes all those behind."""
    return channel_axis % x.ndim == 1 and sorted(a % x.ndim for a in axes) == [*range(2, x.ndim)]


@relax("nn.group_norm", op.group_norm)
def group_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    *,
    num_groups: int,
    channel_axis: int,
    axes: tuple[int, ...],
    epsilon: float,
    center: bool,
    scale: bool,
) -> Any:
    if not _are_channels_and_rest(x, channel_axis, axes):
        raise Unconvertible("group_norm is supported for channels on axis 1, over all axes behind")
    parameters = (gamma if scale else None, beta if center else None)
    return op.group_norm(x, num_groups, *parameters, epsilon)


@relax("nn.instance_norm", op.instance_norm, op.mean, op.var)
def instance_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    *,
    channel_axis: int,
    axes: tuple[int, ...],
    epsilon: float,
    center: bool,
    scale: bool,
) -> Any:
    """Other axes than all behind the channels are normalised by mean and variance."""
    w, b = gamma if scale else None, beta if center else None
    if _are_channels_and_rest(x, channel_axis, axes):
        return op.instance_norm(x, w, b, epsilon)
    y = op.subtract(x, op.mean(x, axes, True))
    y = op.multiply(y, op.rsqrt(op.add(op.var(x, axes, True, correction=0), epsilon)))
    shape = [1] * x.ndim
    shape[channel_axis] = -1
    y = y if w is None else op.multiply(y, op.reshape(w, tuple(shape)))
    return y if b is None else op.add(y, op.reshape(b, tuple(shape)))
