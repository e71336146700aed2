"""Gradients of batch and layer normalisation, and of these gradients."""

from meta import op
from meta.grad.core import gradient, second_gradient
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


def _beside(x, axis):
    """Return the shape of a parameter that goes along ``axis`` of x."""
    axis = normalize_axis(axis, x.ndim)
    return tuple(-1 if i == axis else 1 for i in range(x.ndim))


@gradient(op.batch_norm_train)
def batch_norm_train(
    x, running_mean: TensorType, running_var: TensorType, w, b: TensorType, dy, eps, axis
):
    """y does not depend on the running statistics, which the call has overwritten."""
    dx, dw, db = op.batch_norm_train_dxwb(dy, x, w, None, eps, axis)
    dm, dv = (_cast(op.zeros_like(db), s.dtype) for s in (running_mean, running_var))
    dw = None if w is None else dw
    db = None if b is None else _cast(db, b.dtype)
    return dx, dm, dv, dw, db


@gradient(op.batch_norm_infer)
def batch_norm_infer(x, running_mean, running_var, w, b: TensorType, dy, eps, axis):
    """For y = (x - m) inv w + b with inv = (v + eps)^(-1/2), per channel.

    dx = dy inv w; dm = -sum(dy) inv w; dv = -sum(dy (x - m)) inv³ w / 2; dw = sum(dy (x - m)) inv;
    db = sum(dy).
    """
    wide = statistics_dtype(x.dtype)
    dy, inv = _cast(dy, wide), op.rsqrt(op.add(_cast(running_var, wide), eps))
    lifted = _beside(x, axis)
    factor = inv if w is None else op.multiply(inv, _cast(w, wide))
    centred = op.subtract(_cast(x, wide), op.reshape(_cast(running_mean, wide), lifted))
    flat = op.sum(dy, axis, 0, True)
    slope = op.multiply(op.sum(op.multiply(dy, centred), axis, 0, True), inv)
    dvar = op.multiply(op.multiply(op.multiply(slope, inv), factor), -0.5)
    return (
        _cast(op.multiply(dy, op.reshape(factor, lifted)), x.dtype),
        _cast(op.negative(op.multiply(flat, factor)), running_mean.dtype),
        _cast(dvar, running_var.dtype),
        None if w is None else _cast(slope, w.dtype),
        None if b is None else _cast(flat, b.dtype),
    )


def _layer(gradients, scale, bias, dy, axis):
    """Arrange the results of a layer norm's gradient by slot: x, scale, bias."""
    dx, dscale, dbias = (gradients, None, None) if scale is None else gradients
    if bias is None:
        return dx, dscale, None
    if dbias is None:
        dbias = op.sum(_cast(dy, statistics_dtype(dy.dtype)), axis, 0, True)
    return dx, dscale, _cast(dbias, bias.dtype)


@gradient(op.layer_norm)
def layer_norm(x, scale, bias: TensorType, dy, axis, eps):
    return _layer(op.layer_norm_dx(x, scale, dy, axis, eps), scale, bias, dy, axis)


@gradient(op.layer_norm_train)
def layer_norm_train(x, scale, bias: TensorType, y, dy, axis, eps):
    """Of the results only y is differentiated; mean and invvar serve this rule."""
    _, mean, invvar = y
    gradients = op.layer_norm_train_dx(x, scale, dy[0], mean, invvar, axis, eps)
    return _layer(gradients, scale, bias, dy[0], axis)


def _second(x, weight, dy, cotangents, axes, lifted, eps):
    """`second_gradient` of data [.., extent, ..]; ``lifted`` is a parameter's shape beside x."""
    wide = statistics_dtype(x.dtype)
    u, u_weight, u_bias = (None if t is None else _cast(t, wide) for t in cotangents)
    w, u_weight, u_bias = (
        None if t is None else op.reshape(_cast(t, wide), lifted)
        for t in (weight, u_weight, u_bias)
    )
    by_x, by_weight, by_dy = second_gradient(
        _cast(x, wide), w, _cast(dy, wide), u, u_weight, u_bias, axes, eps
    )
    if weight is not None:
        by_weight = _cast(op.sum(by_weight, lifted.index(-1), 0, True), weight.dtype)
    return _cast(by_x, x.dtype), None if weight is None else by_weight, _cast(by_dy, dy.dtype)


@gradient(op.batch_norm_train_dxwb)
def batch_norm_train_dxwb(dy, x, w, b, dy_, eps, axis):
    lifted = _beside(x, axis)
    axes = tuple(i for i, extent in enumerate(lifted) if extent == 1)
    by_x, by_w, by_dy = _second(x, w, dy, dy_, axes, lifted, eps)
    return by_dy, by_x, by_w, None if b is None else op.zeros_like(b)


def _layer_second(x, scale, dy, cotangents, axis, eps):
    axis, lifted = normalize_axis(axis, x.ndim), _beside(x, axis)
    cotangents = (cotangents, None, None) if scale is None else cotangents
    return _second(x, scale, dy, cotangents, (axis,), lifted, eps)


@gradient(op.layer_norm_dx)
def layer_norm_dx(x, scale, dy, dy_, axis, eps):
    return _layer_second(x, scale, dy, dy_, axis, eps)


@gradient(op.layer_norm_train_dx)
def layer_norm_train_dx(x, scale, dy, mean, invvar, dy_, axis, eps):
    """By x with all that passes through mean and invvar, which are functions of x."""
    gradients = _layer_second(x, scale, dy, dy_, axis, eps)
    return *gradients, op.zeros_like(mean), op.zeros_like(invvar)
