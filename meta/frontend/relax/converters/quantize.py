"""Converters of quantization. Scales and zero points are one number or one per channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.relax.registry import relax


def _beside(parameter: Any, x: Any, axis: int) -> Any:
    """Shape a parameter so that it broadcasts against ``x`` along ``axis``."""
    if parameter.size == 1:
        return op.reshape(parameter, ())
    return op.reshape(parameter, (-1, *(1,) * (x.ndim - 1 - axis % x.ndim)))


@relax("quantize", op.divide, op.round, op.clip, op.cast)
def quantize(x: Any, scale: Any, zero_point: Any, *, out_dtype: str, axis: int) -> Any:
    """round(x / scale) + zero_point, halves to even, limited to the dtype's range."""
    if "int" not in out_dtype:
        raise Unconvertible(f"quantization to {out_dtype} is not supported")
    scaled = op.divide(op.cast(x, "float32"), op.cast(_beside(scale, x, axis), "float32"))
    shifted = op.add(op.round(scaled), op.cast(_beside(zero_point, x, axis), "float32"))
    limits = np.iinfo(out_dtype)
    return op.cast(op.clip(shifted, float(limits.min), float(limits.max)), out_dtype)


@relax("dequantize", op.subtract, op.multiply, op.cast)
def dequantize(x: Any, scale: Any, zero_point: Any, *, out_dtype: str, axis: int) -> Any:
    """(x - zero_point) * scale, in float32."""
    wide = "float32" if is_float(x.dtype) else "int32"
    shifted = op.subtract(op.cast(x, wide), op.cast(_beside(zero_point, x, axis), wide))
    y = op.multiply(op.cast(shifted, "float32"), op.cast(_beside(scale, x, axis), "float32"))
    return y if out_dtype == "float32" else op.cast(y, out_dtype)
