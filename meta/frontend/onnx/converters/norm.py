"""Converters of normalisations."""

from __future__ import annotations

from math import prod

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import reshape_as
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.op.core.check import normalize_axis


@onnx(
    "BatchNormalization",
    op.batch_norm_infer,
    op.batch_norm_train,
    ignore=("consumed_inputs", "is_test"),
)
def batch_normalization(
    x, scale, bias, mean, var, *, epsilon, momentum, spatial, training_mode, call
):
    """(y, running mean, running variance). A model in train mode writes to the running statistics;
    a node with ``training_mode`` returns new ones, of the variance without Bessel's correction.
    """
    if spatial == 0 and call.opset < 9:
        return _by_element(x, scale, bias, mean, var, epsilon, call)
    if training_mode:
        axes = (0, *range(2, x.ndim))
        own, spread = op.mean(x, axes), op.var(x, axes)
        own, spread = cast_to(own, mean.dtype), cast_to(spread, var.dtype)
        y = op.batch_norm_infer(x, own, spread, scale, bias, 1.0 - momentum, epsilon)
        kept = (op.multiply(old, momentum) for old in (mean, var))
        new = (op.multiply(v, 1.0 - momentum) for v in (own, spread))
        return y, *(op.add(k, n) for k, n in zip(kept, new, strict=True))
    if call.training:
        y, *_ = op.batch_norm_train(x, mean, var, scale, bias, 1.0 - momentum, epsilon)
        return y
    return op.batch_norm_infer(x, mean, var, scale, bias, 1.0 - momentum, epsilon)


def _by_element(x, scale, bias, mean, var, epsilon, call):
    """Statistics of each element of an example."""
    if call.training:
        raise Unconvertible("statistics of each element (spatial=0) are not trained")
    y = op.divide(op.subtract(x, mean), op.sqrt(op.add(var, epsilon)))
    return op.add(op.multiply(y, scale), bias)


@onnx("InstanceNormalization", op.instance_norm, ignore=("consumed_inputs",))
def instance_normalization(x, scale, bias, *, epsilon):
    return op.instance_norm.plain(x, scale, bias, epsilon)


@onnx("GroupNormalization", op.group_norm, ignore=("stash_type",))
def group_normalization(x, scale, bias, *, epsilon, num_groups):
    """One scale for each channel; onnx's checker refuses opset 18, which had one for each group."""
    return op.group_norm.plain(x, num_groups, scale, bias, epsilon)


def _wide(x, stash_type):
    """Half precision is computed in float32, if ``stash_type`` says so."""
    return cast_to(x, "float32") if stash_type == 1 and x.dtype in ("float16", "bfloat16") else x


def _row(x, parameter, axis):
    """A parameter as a vector for all of the last axes; None if it has another shape."""
    if parameter is None:
        return None
    return op.reshape(parameter, (-1,)) if parameter.shape == x.shape[axis:] else None


@onnx("LayerNormalization", op.layer_norm, op.mean, op.var)
def layer_normalization(x, scale, bias=None, *, axis, epsilon, stash_type, call):
    """(y, mean, 1 / standard deviation) over the axes from the given one on."""
    axis = normalize_axis(axis, x.ndim)
    row, shift = _row(x, scale, axis), _row(x, bias, axis)
    if call.results == 1 and row is not None and (bias is None) == (shift is None):
        flat = op.reshape(x, (*x.shape[:axis], prod(x.shape[axis:])))
        return reshape_as(op.layer_norm.plain(flat, row, shift, -1, epsilon), x)
    axes, wide = tuple(range(axis, x.ndim)), _wide(x, stash_type)
    mean = op.mean(wide, axes, True)
    spread = op.rsqrt(op.add(op.var(wide, axes, True), epsilon))
    y = op.multiply(cast_to(op.multiply(op.subtract(wide, mean), spread), x.dtype), scale)
    return (y if bias is None else op.add(y, bias)), mean, spread


@onnx("RMSNormalization", op.rms_norm, op.mean, op.rsqrt)
def rms_normalization(x, scale, *, axis, epsilon, stash_type):
    """x over the root of its mean square, over the axes from the given one on."""
    axis = normalize_axis(axis, x.ndim)
    row = _row(x, scale, axis)
    if row is not None:
        flat = op.reshape(x, (*x.shape[:axis], prod(x.shape[axis:])))
        return reshape_as(op.rms_norm.plain(flat, row, None, -1, epsilon), x)
    wide = _wide(x, stash_type)
    square = op.mean(op.square(wide), tuple(range(axis, x.ndim)), True)
    y = op.multiply(wide, op.rsqrt(op.add(square, epsilon)))
    return op.multiply(cast_to(y, x.dtype), scale)


@onnx("LRN", op.lrn, op.flip)
def lrn(x, *, alpha, beta, bias, size):
    """Of an even size the window has one more channel behind, where `lrn` has it before."""
    if size % 2:
        return op.lrn(x, size, 1, bias, alpha, beta)
    return op.flip(op.lrn(op.flip(x, 1), size, 1, bias, alpha, beta), 1)


@onnx("MeanVarianceNormalization", op.mean, op.sqrt)
def mean_variance_normalization(x, *, axes):
    """(x - mean) / (standard deviation + 1e-9)."""
    axes = tuple(axes)
    centred = op.subtract(x, op.mean(x, axes, True))
    spread = op.sqrt(op.mean(op.square(centred), axes, True))
    return op.divide(centred, op.add(spread, 1e-9))


@onnx("LpNormalization", op.sum, op.divide, op.where)
def lp_normalization(x, *, axis, p):
    """x over its p-norm along an axis; 0 where that is 0."""
    if p not in (1, 2):
        raise Unconvertible(f"the norm with p={p} is not supported", hint="1 or 2")
    if p == 1:
        norm = op.sum(op.abs(x), axis, keepdims=True)
    else:
        norm = op.sqrt(op.sum(op.square(x), axis, keepdims=True))
    zero = op.equal(norm, 0.0)
    y = op.divide(x, op.where(zero, op.ones_like(norm), norm))
    return op.where(zero, op.zeros_like(x), y)
