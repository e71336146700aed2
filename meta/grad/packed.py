"""Gradients of products and convolutions with packed weights: those of the plain ones."""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.grad.core import gradient


@gradient(op.packed_matmul)
def packed_matmul(x: Any, weight: Any, dy: Any) -> tuple[Any, Any]:
    """dx = dy w, dw = dyᵀ x."""
    (_, k, lanes), n = weight.shape, dy.shape[-1]
    # Of an array without elements an extent cannot be left open.
    count = prod(x.shape[:-1]) if 0 in (k, n) else -1
    rows, slopes = op.reshape(x, (count, k)), op.reshape(dy, (count, n))
    dx = op.reshape(op.matmul(slopes, op.unpack_weight(weight)), x.shape)
    return dx, op.pack_weight(op.matmul_tn(slopes, rows), lanes)


@gradient(op.packed_conv2d)
def packed_conv2d(
    x: Any, weight: Any, dy: Any, stride: Any, padding: Any, dilation: Any, groups: int, layout: str
) -> tuple[Any, Any]:
    """As of `conv2d`."""
    w = op.unpack_weight(weight)
    options = (stride, padding, dilation, groups, layout, "OIHW", "NHWC")
    dx = op.conv2d_dx(w, None, dy, x.shape, *options)
    dw = op.conv2d_dw(x, None, dy, w.shape, *options)
    return dx, op.pack_weight(dw, weight.shape[-1])
