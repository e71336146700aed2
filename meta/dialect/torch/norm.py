"""Batch and layer normalisation on ATen. Half precision is normalised in float32."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened

ON_CUDA = {"cuda": LIBRARY}
"""Of the gradient of batch normalisation: on the CPU generated code is faster, and on CUDA that of
the other two (2x to 7x, H200, 64x64x112x112)."""


def _promised(call, results):
    """Return the results, compact and of the promised dtypes."""
    return tuple(
        r.to(TO_TORCH[t.dtype]).contiguous() for r, t in zip(results, call.outputs, strict=True)
    )


def _images(x, axis):
    """Return a view of x with its channels on axis 1."""
    return x.movedim(axis, 1)


@dialect.kernel(op.batch_norm_train)
def batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis):
    wide = widened(_images(x, axis), w, b, running_mean, running_var)
    y, _, _ = torch.native_batch_norm(*wide, True, momentum, eps)
    for running, updated in ((running_mean, wide[3]), (running_var, wide[4])):
        if updated is not running:
            running.copy_(updated)
    return y.to(x.dtype).movedim(1, axis).contiguous()


@dialect.kernel(op.batch_norm_infer)
def batch_norm_infer(x, running_mean, running_var, w, b, eps, axis):
    wide = widened(_images(x, axis), w, b, running_mean, running_var)
    y = torch.native_batch_norm(*wide, False, 0.0, eps)[0]
    return y.to(x.dtype).movedim(1, axis).contiguous()


@dialect.kernel(op.batch_norm_train_dxwb, plevel=ON_CUDA)
def batch_norm_train_dxwb(dy, x, w, eps, axis, call):
    dy, x, w = widened(_images(dy, axis), _images(x, axis), w)
    axes = [i for i in range(x.ndim) if i != 1]
    var, mean = torch.var_mean(x, axes, correction=0)
    w = torch.ones_like(mean) if w is None else w
    dx, dw, db = torch.ops.aten.native_batch_norm_backward(
        dy, x, w, None, None, mean, torch.rsqrt(var + eps), True, eps, [True, True, True]
    )
    return _promised(call, (dx.movedim(1, axis), dw, db))


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
    return _promised(call, (y.movedim(-1, axis), mean, invvar))


def _gradients(x, scale, dy, mean, invvar, axis, call):
    x, dy, scale = widened(_last(x, axis), _last(dy, axis), scale)
    mask = [True, scale is not None, scale is not None]
    results = torch.ops.aten.native_layer_norm_backward(
        dy, x, x.shape[-1:], mean.unsqueeze(-1), invvar.unsqueeze(-1), scale, scale, mask
    )
    results = (results[0].movedim(-1, axis), *results[1:])
    return _promised(call, results) if scale is not None else _promised(call, results[:1])[0]


@dialect.kernel(op.layer_norm_dx)
def layer_norm_dx(x, scale, dy, axis, eps, call):
    _, mean, invvar = _layer_norm(x, None, None, axis, eps)
    return _gradients(x, scale, dy, mean, invvar, axis, call)


# ATen reads mean and invvar as if they were compact.
@dialect.kernel(op.layer_norm_train_dx, strided=False)
def layer_norm_train_dx(x, scale, dy, mean, invvar, axis, call):
    return _gradients(x, scale, dy, mean, invvar, axis, call)
