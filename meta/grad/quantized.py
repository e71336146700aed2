"""Gradients of products with quantised weights: by x, and by scales and zeros where those learn."""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.grad.core import gradient


@gradient(op.quantized_matmul)
def quantized_matmul(x: Any, weight: Any, scales: Any, zeros: Any, dy: Any) -> Any:
    """dx = dy w. With dw = dyᵀ x, those of scales and zeros are sums over each group of
    dw (weight - zeros) and of -dw scales.
    """
    wide = "float64" if x.dtype == "float64" else "float32"
    (n, groups), k = scales.shape, x.shape[-1]
    # Of an array without elements an extent cannot be left open.
    count = prod(x.shape[:-1]) if 0 in (k, n) else -1
    rows, slopes = op.reshape(x, (count, k)), op.reshape(dy, (count, n))
    w = op.dequantize_weight(weight, scales, zeros, dtype=x.dtype)
    dx = op.reshape(op.matmul(slopes, w), x.shape)
    dw = op.matmul_tn(op.astype(slopes, wide), op.astype(rows, wide))
    dw = op.reshape(dw, (n, groups, k // max(groups, 1)))
    ones = op.ones_like(scales)
    numbers = op.dequantize_weight(weight, ones, zeros, dtype=wide)
    by_scales = op.sum(op.multiply(dw, op.reshape(numbers, dw.shape)), 2)
    by_zeros = None
    if zeros is not None:
        by_zeros = op.negative(op.multiply(op.sum(dw, 2), op.astype(scales, wide)))
        by_zeros = op.astype(by_zeros, zeros.dtype)
    return dx, None, op.astype(by_scales, scales.dtype), by_zeros
