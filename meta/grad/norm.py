"""Gradients of batch and layer normalisation."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@gradient(op.batch_norm_train)
def batch_norm_train(x, running_mean, running_var, w, b: TensorType, dy, eps):
    """y does not depend on the running statistics."""
    dx, dw, db = op.batch_norm_train_dxwb(dy, x, w, None, eps)
    dw = None if w is None else dw
    db = None if b is None else _cast(db, b.dtype)
    return dx, op.zeros_like(running_mean), op.zeros_like(running_var), dw, db


@gradient(op.batch_norm_infer)
def batch_norm_infer(x, running_mean, running_var, w, b: TensorType, dy, eps):
    """For y = (x - m) inv w + b with inv = (v + eps)^(-1/2), per channel.

    dx = dy inv w; dm = -sum(dy) inv w; dv = -sum(dy (x - m)) inv³ w / 2; dw = sum(dy (x - m)) inv;
    db = sum(dy).
    """
    wide = statistics_dtype(x.dtype)
    dy, inv = _cast(dy, wide), op.rsqrt(op.add(_cast(running_var, wide), eps))
    lifted = (1, -1) + (1,) * (x.ndim - 2)
    factor = inv if w is None else op.multiply(inv, _cast(w, wide))
    centred = op.subtract(_cast(x, wide), op.reshape(_cast(running_mean, wide), lifted))
    flat = op.sum(dy, 1, 0, True)
    slope = op.multiply(op.sum(op.multiply(dy, centred), 1, 0, True), inv)
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


not_differentiable(
    op.batch_norm_train_dxwb,
    op.layer_norm_dx,
    op.layer_norm_train_dx,
    why="second derivatives of a normalisation go through its statistics; compose it of mean, "
    "subtract, multiply and rsqrt to have them",
)
