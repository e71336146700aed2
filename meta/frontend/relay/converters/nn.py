"""Converters of softmax, activations with parameters, biases and the like."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relay.arguments import WHOLE, along
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis

relay.same("nn.softmax", op.softmax)
relay.same("nn.log_softmax", op.log_softmax)
# The same function, of which TVM computes an approximation.
relay.same("nn.fast_softmax", op.softmax)
relay.same("nn.bias_add", op.bias_add)
relay.same("nn.batch_flatten", op.batch_flatten)


@relay("nn.leaky_relu", op.leaky_relu)
def leaky_relu(data: Any, *, alpha: float) -> Any:
    return op.leaky_relu(data, alpha)


@relay("nn.prelu", op.where)
def prelu(data: Any, alpha: Any, *, axis: int) -> Any:
    return op.where(data > 0, data, data * along(alpha, data.ndim, axis))


@relay("nn.fifo_buffer", op.concatenate, op.strided_slice)
def fifo_buffer(data: Any, buffer: Any, *, axis: int) -> Any:
    """The buffer without its oldest elements along an axis, and the data behind."""
    at = normalize_axis(axis, buffer.ndim)
    extent, new = buffer.shape[at], data.shape[at]
    if new > extent:
        raise Unconvertible(f"{new} elements do not fit into a buffer of {extent}")
    begin, end = (0,) * at + (new,), (WHOLE,) * (at + 1)
    return op.concatenate((op.strided_slice(buffer, begin, end), data), at)
