"""Converters of normalisations, and of dropout.

``scale`` and ``center`` say whether gamma and beta, which are always given, take part.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.arguments import along
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis


def _affine(x: Any, gamma: Any, beta: Any, axis: int, scale: bool, center: bool) -> Any:
    """Return x * gamma + beta along an axis, without the part that a flag leaves out."""
    if scale:
        x = x * along(cast_to(gamma, x.dtype), x.ndim, axis)
    if center:
        x = x + along(cast_to(beta, x.dtype), x.ndim, axis)
    return x


def _exchanged(x: Any, axis: int) -> Any:
    """Return x with one axis as axis 1 and axis 1 in its place."""
    at = normalize_axis(axis, x.ndim)
    return x if at == 1 else op.swap_axis(x, 1, at)


@relay("nn.batch_norm", op.batch_norm_infer, op.batch_norm_train)
def batch_norm(
    data: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    *,
    axis: int,
    epsilon: float,
    scale: bool,
    center: bool,
    call: CallSite,
) -> Any:
    """In training the batch's own statistics are used, and the moving ones follow them by a tenth.

    Relay's operator only applies statistics and has no momentum; a tenth is what PyTorch, ONNX and
    `meta`'s own layer have as default.
    """
    w, b = (gamma if scale else None), (beta if center else None)
    arguments = (data, moving_mean, moving_var, w, b)
    if call.training:
        return op.batch_norm_train(*arguments, eps=epsilon, axis=axis)
    y = op.batch_norm_infer(*arguments, eps=epsilon, axis=axis)
    return y, moving_mean, moving_var


@relay("nn.layer_norm", op.layer_norm)
def layer_norm(
    data: Any, gamma: Any, beta: Any, *, axis: int, epsilon: float, scale: bool, center: bool
) -> Any:
    if scale and center:
        return op.layer_norm(data, gamma, beta, axis, epsilon)
    y = op.layer_norm(data, axis=axis, eps=epsilon)
    return _affine(y, gamma, beta, axis, scale, center)


@relay("nn.instance_norm", op.instance_norm)
def instance_norm(
    data: Any, gamma: Any, beta: Any, *, axis: int, epsilon: float, scale: bool, center: bool
) -> Any:
    x = _exchanged(data, axis)
    if scale and center:
        return _exchanged(op.instance_norm(x, gamma, beta, epsilon), axis)
    y = op.instance_norm(x, eps=epsilon)
    return _exchanged(_affine(y, gamma, beta, 1, scale, center), axis)


@relay("nn.group_norm", op.group_norm)
def group_norm(
    data: Any,
    gamma: Any,
    beta: Any,
    *,
    num_groups: int,
    axis: int,
    epsilon: float,
    scale: bool,
    center: bool,
) -> Any:
    x = _exchanged(data, axis)
    if scale and center:
        return _exchanged(op.group_norm(x, num_groups, gamma, beta, epsilon), axis)
    y = op.group_norm(x, num_groups, eps=epsilon)
    return _exchanged(_affine(y, gamma, beta, 1, scale, center), axis)


@relay("nn.lrn", op.lrn)
def lrn(data: Any, *, size: int, axis: int, bias: float, alpha: float, beta: float) -> Any:
    return op.lrn(data, size, axis, bias, alpha, beta)


@relay("nn.l2_normalize", op.l2_normalize)
def l2_normalize(data: Any, *, eps: float, axis: tuple[int, ...] | None) -> Any:
    return op.l2_normalize(data, eps, axis or ())


@relay("nn.dropout", op._contrib_dropout)
def dropout(data: Any, *, rate: float, call: CallSite) -> Any:
    """The second result is the mask, in the data's dtype; ones outside of training."""
    if not call.training:
        return data, op.ones_like(data)
    y, mask, _ = op._contrib_dropout(data, rate)
    return y, op.cast(mask, data.dtype)
