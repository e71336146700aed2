"""Elementwise losses in tensor expressions. Half precision is computed in float32.

A loss is a function of two elements, target and prediction; its gradient another one.
"""

import math

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import c_math
from meta.dialect.tvm.broadcast import computing, constant
from meta.dialect.tvm.compute import COMM_REDUCE, ELEMWISE, compute
from meta.dialect.tvm.loss import nan


def count(shape, reduction):
    """Return what the sum of the elements is divided by; None for a reduction without one."""
    extents = {"mean": shape, "batchmean": shape[:1]}.get(reduction)
    return None if extents is None else math.prod(int(extent) for extent in extents)


def loss(element, y_true, y_pred, reduction):
    """Return ``element(target, prediction)``, reduced."""
    shape, dtype, wide = y_pred.shape, str(y_pred.dtype), computing(str(y_pred.dtype))

    def at(*i):
        return element(y_true(*i).astype(wide), y_pred(*i).astype(wide))

    if reduction == "none" or not shape:
        return te.compute(shape, lambda *i: at(*i).astype(dtype), name="loss")
    divisor = count(shape, reduction)
    if divisor == 0:
        return te.compute((), lambda: nan(dtype), name="loss")
    axes = [te.reduce_axis((0, extent)) for extent in shape]
    total = te.compute((), lambda: te.sum(at(*axes), axis=axes), name="total")
    over = tirx.const(float(divisor or 1), wide)
    return te.compute((), lambda: (total() / over).astype(dtype), name="loss")


def dpred(slope, dy, y_true, y_pred, reduction):
    """Return ``slope(target, prediction)``, times dy over the count of the reduction."""
    shape, dtype, wide = y_pred.shape, str(y_pred.dtype), computing(str(y_pred.dtype))
    over = tirx.const(float(count(shape, reduction) or 1), wide)

    def at(*i):
        share = (dy(*i) if reduction == "none" else dy()).astype(wide) / over
        return (slope(y_true(*i).astype(wide), y_pred(*i).astype(wide)) * share).astype(dtype)

    return te.compute(shape, at, name="dpred")


@compute(op.mse_loss, COMM_REDUCE)
def mse_loss(y_true, y_pred, reduction):
    return loss(lambda t, p: (p - t) * (p - t), y_true, y_pred, reduction)


@compute(op.mse_loss_dpred, ELEMWISE, static=True)
def mse_loss_dpred(dy, y_true, y_pred, reduction):
    return dpred(lambda t, p: constant(2, p) * (p - t), dy, y_true, y_pred, reduction)


@compute(op.l1_loss, COMM_REDUCE)
def l1_loss(y_true, y_pred, reduction):
    return loss(lambda t, p: te.abs(p - t), y_true, y_pred, reduction)


@compute(op.l1_loss_dpred, ELEMWISE, static=True)
def l1_loss_dpred(dy, y_true, y_pred, reduction):
    def sign(t, p):
        one, zero = constant(1, p), constant(0, p)
        return tirx.Select(p > t, one, zero) - tirx.Select(p < t, one, zero)

    return dpred(sign, dy, y_true, y_pred, reduction)


@compute(op.huber_loss, COMM_REDUCE)
def huber_loss(y_true, y_pred, reduction, delta):
    def element(t, p):
        d, half, edge = te.abs(p - t), constant(0.5, p), constant(delta, p)
        return tirx.Select(d <= edge, half * d * d, edge * (d - half * edge))

    return loss(element, y_true, y_pred, reduction)


@compute(op.huber_loss_dpred, ELEMWISE, static=True)
def huber_loss_dpred(dy, y_true, y_pred, reduction, delta):
    def clipped(t, p):
        d, low, high = p - t, constant(-delta, p), constant(delta, p)
        return tirx.Select(d > high, high, tirx.Select(d < low, low, d))  # NaN stays NaN

    return dpred(clipped, dy, y_true, y_pred, reduction)


@compute(op.kl_div, COMM_REDUCE)
def kl_div(y_true, y_pred, reduction, log_target):
    def of_logs(t, p):
        return te.exp(t) * (t - p)

    def element(t, p):
        zero, one = constant(0, t), constant(1, t)
        # The logarithm of 1 stands for that of 0, which is multiplied by 0.
        return t * te.log(tirx.Select(t == zero, one, t)) - t * p

    return loss(of_logs if log_target else element, y_true, y_pred, reduction)


@compute(op.kl_div_dpred, ELEMWISE, static=True)
def kl_div_dpred(dy, y_true, y_pred, reduction, log_target):
    def slope(t, _):
        return (te.exp(t) if log_target else t) * constant(-1, t)

    return dpred(slope, dy, y_true, y_pred, reduction)


@compute(op.binary_cross_entropy, COMM_REDUCE)
def binary_cross_entropy(y_true, y_pred, reduction):
    def bounded_log(v):
        low, log = constant(-100, v), te.log(v)
        # 0 by itself: its logarithm is infinite, which a fast one may not say. A NaN stays.
        return tirx.Select(tirx.Or(v == constant(0, v), log < low), low, log)

    def element(t, p):
        one = constant(1, p)
        return (t - one) * bounded_log(one - p) - t * bounded_log(p)

    return loss(element, y_true, y_pred, reduction)


@compute(op.binary_cross_entropy_dpred, ELEMWISE, static=True)
def binary_cross_entropy_dpred(dy, y_true, y_pred, reduction):
    def slope(t, p):
        variance, least = p * (constant(1, p) - p), constant(1e-12, p)
        return (p - t) / tirx.Select(variance < least, least, variance)

    return dpred(slope, dy, y_true, y_pred, reduction)


@compute(op.binary_cross_entropy_with_logits, COMM_REDUCE)
def binary_cross_entropy_with_logits(y_true, y_pred, reduction):
    def element(t, p):
        zero, one = constant(0, p), constant(1, p)
        below = tirx.Select(p < zero, zero - p, zero)
        rest = c_math.log1p(te.exp(zero - te.abs(p)))
        return (one - t) * p + below + rest

    return loss(element, y_true, y_pred, reduction)


@compute(op.binary_cross_entropy_with_logits_dpred, ELEMWISE, static=True)
def binary_cross_entropy_with_logits_dpred(dy, y_true, y_pred, reduction):
    def slope(t, p):
        one = constant(1, p)
        return one / (one + te.exp(constant(0, p) - p)) - t

    return dpred(slope, dy, y_true, y_pred, reduction)
