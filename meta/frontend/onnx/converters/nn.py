"""Converters of matrix products, normalisations and attention.

Attention is one call of `scaled_dot_product_attention` where it says the same. What it does not
have (a soft cap, windows, lengths of a padded cache, the scores as a result) is left to the
function that ONNX defines the operator by.
"""

from __future__ import annotations

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, is_static
from meta.frontend.core.arithmetic import cast_to, widened
from meta.frontend.core.operators import batch_norm_by_batch, normalize_trailing_axes
from meta.frontend.onnx.converters.elementwise import aligned
from meta.frontend.onnx.registry import onnx
from meta.op.core.check import normalize_axis


@onnx("MatMul", op.matmul)
def matmul(a, b):
    return op.matmul(a, b)


@onnx("Gemm", op.matmul, op.multiply, op.add)
def gemm(a, b, c=None, *, alpha, beta, transA, transB, broadcast, call):
    """alpha * a @ b + beta * c."""
    a = op.permute_dims(a, (1, 0)) if transA else a
    b = op.permute_dims(b, (1, 0)) if transB else b
    y = _scaled(op.matmul(a, b), alpha)
    if c is None:
        return y
    if call.opset < 7:
        c = aligned(y, c, y.ndim - c.ndim, broadcast, call)
    return op.add(y, _scaled(c, beta))


def _scaled(x, factor):
    if factor == 1.0:
        return x
    if is_float(x.dtype) or factor == int(factor):
        return op.multiply(x, factor if is_float(x.dtype) else int(factor))
    return cast_to(op.multiply(cast_to(x, "float64"), factor), x.dtype)


@onnx("Einsum", op.einsum)
def einsum(*operands, equation):
    return op.einsum(equation.replace(" ", ""), *operands)


onnx.same("Det", op.linalg_det)
onnx.same("InstanceNormalization", op.instance_norm, epsilon="eps")


@onnx(
    "BatchNormalization",
    op.batch_norm_infer,
    op.batch_norm_train,
    ignore=("is_test",),
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
        return batch_norm_by_batch(x, mean, var, scale, bias, 1.0 - momentum, epsilon)
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


@onnx("GroupNormalization", op.group_norm, ignore=("stash_type",))
def group_normalization(x, scale, bias, *, epsilon, num_groups):
    """One scale for each channel; onnx's checker refuses opset 18, which had one for each group."""
    return op.group_norm.plain(x, num_groups, scale, bias, epsilon)


def _wide(x, stash_type):
    """Half precision is computed in float32, if ``stash_type`` says so."""
    return widened(x) if stash_type == 1 else x


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
        return normalize_trailing_axes(op.layer_norm.plain, x, axis, row, shift, eps=epsilon)
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
        return normalize_trailing_axes(op.rms_norm.plain, x, axis, row, eps=epsilon)
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


FLOAT = 1
"""The precision of the softmax that `scaled_dot_product_attention` has at least."""


def heads(x, count):
    """[batch, length, heads * size] as [batch, heads, length, size]; four axes stay."""
    if x.ndim == 4:
        return x
    if not count:
        raise Unconvertible("inputs of 3 axes need q_num_heads and kv_num_heads")
    batch, length, size = x.shape
    return op.permute_dims(op.reshape(x, (batch, length, count, size // count)), (0, 2, 1, 3))


@onnx("Attention", op.fused_attention, op.concat, ignore=("qk_matmul_output_mode",))
def attention(
    query,
    key,
    value,
    mask=None,
    past_key=None,
    past_value=None,
    lengths=None,
    *,
    is_causal,
    kv_num_heads,
    left_window_size,
    q_num_heads,
    right_window_size,
    scale,
    softcap,
    softmax_precision,
    call,
):
    """(result, keys, values), the keys and values behind those of the past."""
    windows = (left_window_size, right_window_size)
    if softcap or lengths is not None or any(w not in (None, -1) for w in windows):
        return NotImplemented
    if call.results > 3 or softmax_precision not in (None, FLOAT):
        return NotImplemented
    three = query.ndim == 3
    query = heads(query, q_num_heads)
    key, value = heads(key, kv_num_heads), heads(value, kv_num_heads)
    present = key, value
    if past_key is not None:
        present = op.concat((past_key, key), 2), op.concat((past_value, value), 2)
    extents = (query.shape[2], present[0].shape[2])
    if mask is not None and (mask.ndim < 2 or mask.shape[-1] != extents[1]):
        return NotImplemented
    causal = bool(is_causal)
    if causal and (past_key is not None or mask is not None):
        if not is_static(extents):
            return NotImplemented
        offset = extents[1] - key.shape[2]
        mask, causal = _with_causal(mask, extents, offset, query.dtype, call), False
    if mask is not None and mask.dtype != "bool":
        mask = cast_to(mask, query.dtype)
    y = op.scaled_dot_product_attention(
        query,
        *present,
        mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if three:
        batch, count, length, size = y.shape
        y = op.reshape(op.permute_dims(y, (0, 2, 1, 3)), (batch, length, count * size))
    return y, *present


def _with_causal(mask, extents, offset, dtype, call):
    """Return a mask with which query i does not look beyond key i + offset."""
    allowed = np.tri(*extents, k=offset, dtype=bool)
    if mask is None or mask.dtype == "bool":
        seen = constant(allowed, "bool", call)
        return seen if mask is None else op.logical_and(mask, seen)
    return op.add(cast_to(mask, dtype), constant(np.where(allowed, 0, -np.inf), dtype, call))
