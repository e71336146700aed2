"""Attention of few keys as products and a softmax.

A kernel for attention keeps its scores out of memory, which pays from as many keys on as
`LEAST_KEYS` says. With fewer, two products of all heads are faster on the CPU, and what is between
them is part of generated kernels, which have their memory in the program's plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core.ir_calls import OpCall, tensor_of
from meta.ir import Module
from meta.op.attention import HEADS_FIRST, heads_first, mask_repeats, score_scale
from meta.op.core.function import device_of
from meta.passes.attention import LEAST_KEYS
from meta.passes.attention.rewriting import Arguments, rewrite_attention

MOST_SCORES = 1 << 22
"""How many scores may be in memory at a time."""


def write_out_attention(
    module: Module,
    *,
    device: Device,
    least_keys: Mapping[str, tuple[int, int]] = LEAST_KEYS,
) -> Module:
    """Give the products and the softmax of `fused_attention` and of its gradient on the CPU, for
    few keys, in float32: the opposite of `fuse_attention`, with its ``least_keys``.

    The gradient computes the probabilities again, as a kernel does.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.write_out_attention(parse('''
    ... func @main(%q: float32[1, 2, 8, 4]) -> float32[1, 2, 8, 4] {
    ...   %0: (float32[1, 2, 8, 4], float32[1, 2, 8]) = fused_attention(%q, %q, %q)
    ...   %1: float32[1, 2, 8, 4] = %0.0
    ...   return %1
    ... }'''), device=CPU).main.body.bindings[3])
    %0: float32[2, 8, 8] = batch_matmul_nt(%1, %2)
    """
    if device.kind != "cpu":
        return module
    least, _ = least_keys.get(device.kind, (0, 0))
    return rewrite_attention(module, partial(_has_few_keys, least), _written_out)


def _has_few_keys(least: int, given: Arguments) -> bool:
    """Whether products are faster than a kernel, which is from so many keys on."""
    names = "query", "key", "value"
    types = [heads_first(tensor_of(given[n]), given["layout"]) for n in names]
    if not all(t.is_static and t.size and t.dtype == "float32" for t in types):
        return False
    (batch, heads, rows), (_, groups, keys) = (t.static_shape[:3] for t in types[:2])
    if any(given[n] is not None for n in ("window", "slopes", "dropout_key")):
        return False
    mask = given["mask"]
    if mask is not None and mask_repeats(tensor_of(mask), batch) != 1:
        return False
    fits = rows > 1 and groups == heads and batch * heads * rows * keys <= MOST_SCORES
    return fits and keys < least


class _Scores:
    """The scores of a call; batches and heads are axes of their own but for products."""

    def __init__(self, given: Arguments) -> None:
        self.layout, self.mask, self.causal = given["layout"], given["mask"], given["causal"]
        self.query, self.key = self.heads_first(given["query"]), self.heads_first(given["key"])
        self.scale = score_scale(given["scale"], self.query.shape[-1])

    def heads_first(self, x: Any) -> Any:
        """Return what is in the call's layout with its heads first, or what has them so in the
        call's layout.
        """
        return x if self.layout == HEADS_FIRST else op.permute_dims(x, (0, 2, 1, *range(3, x.ndim)))

    def product(self, product: Any, x: Any, y: Any) -> Any:
        """Return the products of all heads."""
        found = product(*(op.reshape(z, (-1, *z.shape[2:])) for z in (x, y)))
        return op.reshape(found, (*x.shape[:2], *found.shape[1:]))

    def masked(self, scores: Any) -> Any:
        """Return scores with the mask, -inf where a query may not look."""
        if self.mask is not None and self.mask.dtype == "bool":
            scores = op.where(self.mask, scores, -math.inf)
        elif self.mask is not None:
            scores = op.add(scores, self.mask)
        if self.causal:
            place = device_of(scores)
            row, key = (op.arange(0, n, 1, "int32", place) for n in scores.shape[2:])
            seen = op.greater_equal(op.reshape(row, (-1, 1)), key)
            scores = op.where(seen, scores, -math.inf)
        return scores


def _written_out(call: OpCall, given: Arguments) -> tuple[Any, ...]:
    """Return the results of a call."""
    return (_forward if call.op is op.fused_attention else _backward)(_Scores(given), given)


def _forward(s: _Scores, given: Arguments) -> tuple[Any, ...]:
    """Return attention, and the logarithms of its sums; 0 for a query that sees nothing."""
    query = s.heads_first(op.multiply(given["query"], s.scale))
    scores = s.masked(s.product(op.batch_matmul_nt, query, s.key))
    p, top = op.softmax(scores), op.max(scores, -1)
    sums = op.subtract(top, op.log(op.max(p, -1)))  # of exp(top) a part of max(p)
    if s.mask is not None:
        sees = op.greater(top, -math.inf)
        p, sums = op.where(op.expand_dims(sees, -1), p, 0.0), op.where(sees, sums, 0.0)
    y = s.product(op.batch_matmul, p, s.heads_first(given["value"]))
    return s.heads_first(y), sums


def _backward(s: _Scores, given: Arguments) -> tuple[Any, ...]:
    """Return the gradients; see `fused_attention_dx`.

    The scores are scaled behind their product, and are so no value that a program with the forward
    call would keep. Value and y are taken without the last row of y: an offset that gradients do
    not depend on, and that would take digits of ``dp - sum(dy * y)``.
    """
    dy, y = given["dy"], given["y"]
    shape, axis = list(y.shape), 2 if s.layout == HEADS_FIRST else 1
    begin = [n - 1 if i == axis else 0 for i, n in enumerate(shape)]
    offset = op.strided_slice(y, tuple(begin), tuple(shape))
    value = s.heads_first(op.subtract(given["value"], offset))
    delta = s.heads_first(op.sum(op.multiply(dy, op.subtract(y, offset)), -1, keepdims=True))
    dy = s.heads_first(dy)
    scores = op.multiply(s.product(op.batch_matmul_nt, s.query, s.key), s.scale)
    p = op.exp(op.subtract(s.masked(scores), op.expand_dims(given["logsumexp"], -1)))
    ds = op.multiply(p, op.subtract(s.product(op.batch_matmul_nt, dy, value), delta))
    dq = op.multiply(s.product(op.batch_matmul, ds, s.key), s.scale)
    dk = op.multiply(s.product(op.batch_matmul_tn, ds, s.query), s.scale)
    return tuple(map(s.heads_first, (dq, dk, s.product(op.batch_matmul_tn, p, dy))))
