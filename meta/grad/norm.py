"""Gradients of batch and layer normalisation."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@gradient(op.batch_norm_train)
def batch_norm_train(x, w, b: TensorType, dy, eps):
    dx, dw, db = op.batch_norm_train_dxwb(dy, x, w, None, eps)
    dw = None if w is None else dw
    db = None if b is None else _cast(db, b.dtype)
    return dx, None, None, dw, db


@gradient(op.batch_norm_infer)
def batch_norm_infer(x, running_mean, running_var, w, b: TensorType, dy, eps):
    """y is linear in each of x, w and b. The statistics are constants, as in torch."""
    wide = statistics_dtype(x.dtype)
    inv = op.rsqrt(op.add(_cast(running_var, wide), eps))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    dy = _cast(dy, wide)
    factor = inv if w is None else op.multiply(inv, w)
    dx = _cast(op.multiply(dy, op.reshape(factor, shape)), x.dtype)
    dw = db = None
    if w is not None:
        centred = op.subtract(_cast(x, wide), op.reshape(running_mean, shape))
        dw = op.multiply(op.sum(op.multiply(dy, centred), 1, 0, True), inv)
        dw = _cast(dw, w.dtype)
    if b is not None:
        db = _cast(op.sum(dy, 1, 0, True), b.dtype)
    return dx, None, None, dw, db


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
