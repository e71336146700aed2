"""Converters of elementwise functions of one, two and three tensors, and of quantization.

Scales and zero points are one number or one per channel.
"""

from __future__ import annotations

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import broadcast_along
from meta.frontend.core.arithmetic import clip_to_bounds, quotient
from meta.frontend.core.operators import ELEMENTWISE
from meta.frontend.relax.registry import relax

_SAME = "add atan2 logical_and logical_not logical_or logical_xor round square subtract where"
for _name, _base in (ELEMENTWISE | {name: getattr(op, name) for name in _SAME.split()}).items():
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


def _beside(parameter, x, axis):
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
    scaled = op.divide(op.astype(x, "float32"), op.astype(_beside(scale, x, axis), "float32"))
    shifted = op.add(op.round(scaled), op.astype(_beside(zero_point, x, axis), "float32"))
    limits = np.iinfo(out_dtype)
    return op.astype(op.clip(shifted, float(limits.min), float(limits.max)), out_dtype)


@relax("dequantize", op.subtract, op.multiply, op.astype)
def dequantize(x, scale, zero_point, *, out_dtype, axis):
    """(x - zero_point) * scale, in float32."""
    wide = "float32" if is_float(x.dtype) else "int32"
    shifted = op.subtract(op.astype(x, wide), op.astype(_beside(zero_point, x, axis), wide))
    y = op.multiply(op.astype(shifted, "float32"), op.astype(_beside(scale, x, axis), "float32"))
    return y if out_dtype == "float32" else op.astype(y, out_dtype)
