"""Normalisations on ATen."""

from math import prod

import torch
import torch.nn.functional as F

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import rounded_once, wide, widened
from meta.op.core.check import normalize_axes

ON_CUDA = {"cuda": LIBRARY}
"""Of the gradient of batch normalisation: on the CPU generated code is faster, and on CUDA that of
the other two (2x to 7x, H200, 64x64x112x112)."""


def _promised(call, *results):
    """Return those of the results that the call has, compact and of the promised dtypes."""
    found = tuple(
        r.to(TO_TORCH[t.dtype]).contiguous() for r, t in zip(results, call.outputs, strict=False)
    )
    return found if len(found) > 1 else found[0]


def _batch_norm(x, running_mean, running_var, w, b, trains, momentum, eps, axis):
    """Return y, and the running statistics in at least float32."""
    wide = widened(x.movedim(axis, 1), w, b, running_mean, running_var)
    arguments = (*wide, trains, momentum, eps)
    y, _, _ = torch.native_batch_norm(*arguments)
    return y.to(x.dtype).movedim(1, axis).contiguous(), *wide[3:]


@dialect.kernel(op.batch_norm_train)
def batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis):
    y, mean, var = _batch_norm(x, running_mean, running_var, w, b, True, momentum, eps, axis)
    for running, updated in ((running_mean, mean), (running_var, var)):
        if updated is not running:
            running.copy_(updated)
    return y


@dialect.kernel(op.batch_norm_infer)
def batch_norm_infer(x, running_mean, running_var, w, b, eps, axis):
    return _batch_norm(x, running_mean, running_var, w, b, False, 0.0, eps, axis)[0]


@dialect.kernel(op.multi_tensor_fold_batch_norm)
def multi_tensor_fold_batch_norm(w, mean, var, scale, shift, b, eps, out):
    count = len(w)
    for i, weight in enumerate(w):
        kind = torch.float64 if weight.dtype == torch.float64 else torch.float32
        factor = torch.rsqrt(var[i].to(kind) + eps)
        if scale:
            factor = factor * scale[i].to(kind)
        bias = ((b[i].to(kind) if b else 0) - mean[i].to(kind)) * factor
        out[count + i].copy_(bias + shift[i].to(kind) if shift else bias)
        out[i].copy_(weight.to(kind) * factor.reshape(-1, *[1] * (weight.ndim - 1)))


@dialect.kernel(op.batch_norm_train_dxwb, plevel=ON_CUDA)
def batch_norm_train_dxwb(dy, x, w, eps, axis, call):
    dy, x, w = widened(dy.movedim(axis, 1), x.movedim(axis, 1), w)
    axes = [i for i in range(x.ndim) if i != 1]
    var, mean = torch.var_mean(x, axes, correction=0)
    w = torch.ones_like(mean) if w is None else w
    dx, dw, db = torch.ops.aten.native_batch_norm_backward(
        dy, x, w, None, None, mean, torch.rsqrt(var + eps), True, eps, [True, True, True]
    )
    return _promised(call, dx.movedim(1, axis), dw, db)


def _last(x, axis):
    """Return x with ``axis`` moved to the end, compact."""
    return x.movedim(axis, -1).contiguous()


def _layer_norm(x, scale, bias, axis, eps):
    """Return y with ``axis`` at the end, mean and invvar (both without it)."""
    x, scale, bias = widened(_last(x, axis), scale, bias)
    y, mean, invvar = torch.native_layer_norm(x, x.shape[-1:], scale, bias, eps)
    return y, mean.squeeze(-1), invvar.squeeze(-1)


@dialect.kernel(op.layer_norm)
def layer_norm(x, scale, bias, axis, eps):
    y, _, _ = _layer_norm(x, scale, bias, axis, eps)
    return y.to(x.dtype).movedim(-1, axis).contiguous()


@dialect.kernel(op.layer_norm_train)
def layer_norm_train(x, scale, bias, axis, eps, call):
    y, mean, invvar = _layer_norm(x, scale, bias, axis, eps)
    return _promised(call, y.movedim(-1, axis), mean, invvar)


def _gradients(x, scale, dy, mean, invvar, axis, call):
    x, dy, scale = widened(_last(x, axis), _last(dy, axis), scale)
    mask = [True, scale is not None, scale is not None]
    dx, dscale, dbias = torch.ops.aten.native_layer_norm_backward(
        dy, x, x.shape[-1:], mean.unsqueeze(-1), invvar.unsqueeze(-1), scale, scale, mask
    )
    return _promised(call, dx.movedim(-1, axis), dscale, dbias)


@dialect.kernel(op.layer_norm_dx)
def layer_norm_dx(x, scale, dy, axis, eps, call):
    _, mean, invvar = _layer_norm(x, None, None, axis, eps)
    if x.shape[axis] == 1:  # y does not depend on x: what is not 0 is rounding times invvar, or NaN
        invvar = invvar * 0
    return _gradients(x, scale, dy, mean, invvar, axis, call)


# ATen reads mean and invvar as if they were compact.
@dialect.kernel(op.layer_norm_train_dx, strided=False)
def layer_norm_train_dx(x, scale, dy, mean, invvar, axis, call):
    return _gradients(x, scale, dy, mean, invvar, axis, call)


def _by_groups(x, num_groups, scale, bias, eps):
    """Return y, mean and invvar, all being compact and in at least float32."""
    extents = (x.shape[0], x.shape[1], prod(x.shape[2:]))
    return torch.native_group_norm(x, scale, bias, *extents, num_groups, eps)


@dialect.kernel(op.group_norm, strided=False)
def group_norm(x, num_groups, scale, bias, eps):
    if not x.numel():
        return torch.empty_like(x)
    wide, scale, bias = widened(x, scale, bias)
    return _by_groups(wide, num_groups, scale, bias, eps)[0].to(x.dtype)


@dialect.kernel(op.instance_norm, strided=False)
def instance_norm(x, scale, bias, eps):
    return group_norm(x, x.shape[1], scale, bias, eps)


@dialect.kernel(op.group_norm_dx, strided=False)
def group_norm_dx(x, num_groups, scale, dy, eps, call):
    if not x.numel():
        dx = torch.empty_like(x)
        return dx if scale is None else (dx, torch.zeros_like(scale), torch.zeros_like(scale))
    wide, wide_dy, wide_scale = widened(x, dy, scale)
    _, mean, inverse = _by_groups(wide, num_groups, None, None, eps)
    extents = (x.shape[0], x.shape[1], prod(x.shape[2:]))
    mask = [True, scale is not None, scale is not None]
    dx, dscale, dbias = torch.ops.aten.native_group_norm_backward(
        wide_dy, wide, mean, inverse, wide_scale, *extents, num_groups, mask
    )
    return _promised(call, dx, dscale, dbias)


def _lifted(parameter, x, axis):
    """Return a parameter in x's dtype, shaped to go along ``axis``."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.to(x.dtype).reshape(shape)


def _inverse(x, axis, eps):
    return torch.rsqrt(x.square().mean(axis, keepdim=True) + eps)


@rounded_once(op.rms_norm)
def rms_norm(x, scale, bias, axis, eps):
    y = x * _inverse(x, axis, eps)
    y = y if scale is None else y * _lifted(scale, x, axis)
    return y if bias is None else y + _lifted(bias, x, axis)


@dialect.kernel(op.rms_norm_dx)
def rms_norm_dx(x, scale, dy, axis, eps, call):
    x, dy = x.to(wide(x.dtype)), dy.to(wide(x.dtype))
    inverse = _inverse(x, axis, eps)
    xhat = x * inverse
    g = dy if scale is None else dy * _lifted(scale, x, axis)
    dx = inverse * (g - xhat * (g * xhat).mean(axis, keepdim=True))
    if scale is None:
        return _promised(call, dx)
    dscale = (dy * xhat).movedim(axis, 0).reshape(x.shape[axis], -1 if x.numel() else 0).sum(1)
    return _promised(call, dx, dscale)


def _window_sum(x, axis, before, after):
    """Return, per element, the sum from ``before`` places before it to ``after`` behind."""
    padded = F.pad(x.movedim(axis, -1), (before, after))
    return padded.unfold(-1, before + after + 1, 1).sum(-1).movedim(-1, axis)


def _divisor(x, size, axis, bias, alpha):
    return bias + alpha / size * _window_sum(x.square(), axis, size // 2, (size - 1) // 2)


@rounded_once(op.lrn)
def lrn(x, size, axis, bias, alpha, beta):
    return x / _divisor(x, size, axis, bias, alpha) ** beta


@rounded_once(op.lrn_dx)
def lrn_dx(x, dy, size, axis, bias, alpha, beta):
    divisor = _divisor(x, size, axis, bias, alpha)
    direct = dy / divisor**beta
    others = _window_sum(direct * x / divisor, axis, (size - 1) // 2, size // 2)
    return direct - 2 * alpha * beta / size * x * others


@rounded_once(op.l2_normalize)
def l2_normalize(x, eps, axis):
    square, axes = x.square(), normalize_axes(axis, x.ndim)
    square = square.sum(axes, keepdim=True) if axes else square
    return x / square.clamp_min(eps).sqrt()


@dialect.kernel(op.l2norm)
def l2norm(x):
    return torch.linalg.vector_norm(x, dtype=wide(x.dtype)).to(x.dtype)
