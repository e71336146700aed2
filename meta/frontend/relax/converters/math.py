"""Converters of elementwise functions, of quantization, and of operators that reduce, accumulate,
search and sort along axes. Scales and zero points are one number or one per channel.
"""

from __future__ import annotations

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import broadcast_along
from meta.frontend.core.arithmetic import clip_to_bounds, quotient
from meta.frontend.core.operators import mean, scan
from meta.frontend.relax.values import relax
from meta.op.core.check import normalize_axes
from meta.op.core.names import named_in
from meta.runtime.ndarray import array

for _name, _base in named_in("relax").items():
    relax.same(_name, _base)

relax.same("floor_mod", op.remainder)
relax.same("log_add_exp", op.logaddexp)
relax.same("mod", op.fmod)
relax.same("nn.gelu", op.gelu)
relax.same("nn.leakyrelu", op.leaky_relu, alpha="negative_slope")
relax.same("nn.relu", op.relu)
relax.same("nn.selu", op.selu)
relax.same("nn.silu", op.silu)
relax.same("nn.softplus", op.softplus, "beta", "threshold")

relax("clip", op.clip)(clip_to_bounds)
relax("divide", op.divide, op.floor_divide)(quotient)


@relax("ewise_fma", op.multiply, op.add)
def ewise_fma(x1, x2, x3):
    return op.add(op.multiply(x1, x2), x3)


@relax("nn.gelu_tanh", op.gelu)
def gelu_tanh(x):
    return op.gelu(x, approximate="tanh")


@relax("nn.prelu", op.prelu, op.where)
def prelu(x, alpha, *, axis):
    if axis in (1, 1 - x.ndim) and x.ndim > 1 and alpha.ndim == 1:
        return op.prelu(x, alpha)
    if alpha.ndim == 1 and x.ndim:
        alpha = broadcast_along(alpha, x.ndim, axis)
    return op.where(op.greater(x, 0.0), x, op.multiply(x, alpha))


def _along(parameter, x, axis):
    """Shape a parameter so that it broadcasts against ``x`` along ``axis``."""
    return (
        op.reshape(parameter, ())
        if parameter.size == 1
        else broadcast_along(parameter, x.ndim, axis)
    )


@relax("quantize", op.divide, op.round, op.clip, op.astype)
def quantize(x, scale, zero_point, *, out_dtype, axis):
    """round(x / scale) + zero_point, halves to even, limited to the dtype's range."""
    if "int" not in out_dtype:
        raise Unconvertible(f"quantization to {out_dtype} is not supported")
    scaled = op.divide(op.astype(x, "float32"), op.astype(_along(scale, x, axis), "float32"))
    shifted = op.add(op.round(scaled), op.astype(_along(zero_point, x, axis), "float32"))
    limits = np.iinfo(out_dtype)
    return op.astype(op.clip(shifted, float(limits.min), float(limits.max)), out_dtype)


@relax("dequantize", op.subtract, op.multiply, op.astype)
def dequantize(x, scale, zero_point, *, out_dtype, axis):
    """(x - zero_point) * scale, in float32."""
    wide = "float32" if is_float(x.dtype) else "int32"
    shifted = op.subtract(op.astype(x, wide), op.astype(_along(zero_point, x, axis), wide))
    y = op.multiply(op.astype(shifted, "float32"), op.astype(_along(scale, x, axis), "float32"))
    return y if out_dtype == "float32" else op.astype(y, out_dtype)


def _reducing(name, base, **options):
    @relax(name, base)
    def reduce(x, *, axis, keepdims):
        return base(x, axis, keepdims, **options)


@relax.each(op.max, op.min, op.prod, op.sum)
def reduction(base, x, *, axis, keepdims):
    """The dtype stays."""
    return op.astype(base(x, axis, keepdims), x.dtype)


_reducing("argmax", op.argmax)
_reducing("argmin", op.argmin)
_reducing("std", op.std, correction=0)
_reducing("variance", op.var, correction=0)


@relax("mean", op.mean, op.sum)
def mean_over(x, *, axis, keepdims):
    """Of integers it is rounded towards zero."""
    return mean(x, normalize_axes(axis, x.ndim, False), keepdims)


@relax("median", op.argsort, op.take_along_axis)
def median(x, *, axis, keepdims):
    """The lower of two middle elements; with an axis also its index."""
    flat = op.reshape(x, (-1,)) if not axis else x
    at = (axis[0] if axis else 0) % flat.ndim
    order = op.argsort(flat, at)
    middle = (flat.shape[at] - 1) // 2
    begin = (*(0,) * at, middle)
    end = (*flat.shape[:at], middle + 1)
    index = op.strided_slice(order, begin, end)
    value = op.take_along_axis(flat, index, at)
    if not axis:
        return op.reshape(value, (1,) if keepdims else ())
    return (value, index) if keepdims else (op.squeeze(value, at), op.squeeze(index, at))


@relax.each(op.cumsum, op.cumprod)
def scan_along(base, x, *, axis, dtype, exclusive):
    return scan(base, x, axis, dtype or x.dtype, exclusive)


@relax("sort", op.sort)
def sort(x, *, axis, descending):
    return op.sort(x, axis, descending)


_INDICES = {"dtype": "int32"}
relax.same("argsort", op.argsort, "axis", "descending", "dtype", otherwise=_INDICES)
_CHOSEN = ("k", "axis", "ret_type", "largest", "dtype")
relax.same("topk", op.topk, *_CHOSEN, otherwise=_INDICES)


@relax("bucketize", op.searchsorted)
def bucketize(x, boundaries, *, out_int32, right):
    return op.searchsorted.plain(boundaries, x, right, "int32" if out_int32 else "int64")


@relax("nonzero", op.argwhere)
def nonzero(x):
    """[axes, elements]; one number counts as a vector."""
    return op.permute_dims(op.argwhere(op.reshape(x, (1,)) if x.ndim == 0 else x))


@relax("unique", op.unique)
def unique(x, in_order, index, inverse, counts, axis=None, *, call):
    """Of known arrays everything is computed now; of others, distinct elements in order."""
    if constant_value(x) is not None:
        found = _unique(x.numpy(), bool(in_order), axis)
        flags = (True, bool(index), bool(inverse), bool(counts))
        chosen = [array(v, device=call.device) for v, f in zip(found, flags, strict=True) if f]
        return tuple(chosen) if len(chosen) > 1 else chosen[0]
    if not in_order or index or axis is not None:
        raise Unconvertible(
            "distinct elements along an axis, in the order of occurrence, or with their first "
            "indices are not supported"
        )
    found = op.unique(x, bool(inverse), bool(counts))
    if inverse:
        return (found[0], op.reshape(found[1], (-1,)), *found[2:])
    return found


def _unique(x, in_order, axis):
    values, index, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not in_order:
        order = np.argsort(index)
        values = np.take(values, order, axis=axis)
        inverse = np.argsort(order)[inverse]
        index, counts = index[order], counts[order]
    return values, index, inverse, counts
