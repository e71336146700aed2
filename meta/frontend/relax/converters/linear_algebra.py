"""Converters of products and of attention."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.base.device import Device
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import product
from meta.frontend.relax.registry import relax
from meta.op.indexing import matmul_any
from meta.runtime.ndarray import array


@relax("matmul", op.matmul, op.batch_matmul)
def matmul(x1, x2, *, out_dtype):
    """Vectors, matrices, and stacks of matrices that broadcast."""
    return product(matmul_any, x1, x2, out_dtype)


@relax("outer", op.multiply)
def outer(x1, x2):
    return op.multiply(op.reshape(x1, (-1, 1)), op.reshape(x2, (1, -1)))


@relax("einsum", op.einsum)
def einsum(operands, *, subscripts):
    return op.einsum(tuple(operands), subscripts)


@relax("nn.attention", op.scaled_dot_product_attention)
def attention(query, key, value, *, scale, causal_mask, window_size, call):
    return _attention(query, key, value, None, scale, causal_mask, window_size, call)


@relax("nn.attention_bias", op.scaled_dot_product_attention)
def attention_bias(query, key, value, bias, *, scale, causal_mask, window_size, call):
    """The bias is added to the scores."""
    return _attention(query, key, value, bias, scale, causal_mask, window_size, call)


def _attention(
    query,
    key,
    value,
    bias,
    scale: float | None,
    causal: str | None,
    window: int | None,
    call: CallSite,
):
    """Tensors are [batch, length, heads, width]."""
    if window is not None:
        raise Unconvertible(f"attention in a window (window_size={window}) is not supported")
    if causal == "BottomRight" and query.shape[1] != key.shape[1]:
        bias = _below(query, key, bias, call.device)
        causal = None
    how = {"causal": bool(causal), "scale": scale, "layout": "BSHD"}
    return op.scaled_dot_product_attention(query, key, value, bias, **how)[0]


def _below(query, key, bias, device: Device):
    """Return a mask for which the last query sees the last key; of more queries than keys every
    one sees as many more, as TVM has it.
    """
    rows, columns = query.shape[1], key.shape[1]
    seen = np.tril(np.ones((rows, columns), bool), abs(rows - columns))
    if bias is None:
        return array(seen, device=device)
    return op.add(bias, array(np.where(seen, 0.0, -np.inf), query.dtype, device=device))


@relax("multinomial_from_uniform", op.cumsum, op.less_equal)
def multinomial_from_uniform(probabilities, uniform, rows, *, dtype):
    """The first class at which the sum of probabilities exceeds the uniform number."""
    sums = op.cumsum(probabilities, 1, probabilities.dtype)
    chosen = op.take(sums, op.reshape(rows, (-1,)), 0)
    below = op.sum(op.less_equal(chosen, uniform), 1, True)
    return op.cast(op.minimum(below, probabilities.shape[1] - 1), dtype)
