"""The cross entropy of a fully connected layer becomes one call, without all scores in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from meta import op
from meta.base.dtype import bits, is_float
from meta.dialect.core.ir_calls import called_op, tensor_of
from meta.ir import Call, Module
from meta.passes.pattern import Match, chain, named, operator, pattern, rewrite, wildcard
from meta.passes.simplify.shapes import VIEWS

LEAST_BYTES = 1 << 26
"""Of scores that are worth a fourth product."""


def fuse_cross_entropy(
    module: Module, *, trained: Iterable[int] | None = None, least_bytes: int = LEAST_BYTES
) -> Module:
    """Call `linear_cross_entropies` where a program has all scores of a large layer in memory.

    That is a `cross_entropy` of a product with a weight, with a bias or without, views and a cast
    to a wider dtype between them, whose scores nothing else reads and take ``least_bytes`` or more.
    A step of training then makes four products instead of three and has no array of scores. The
    result is the same up to rounding; half precision scores are not rounded. It runs at
    ``opt_level`` 3, or where it is ``required``: the layer of GPT-2 small takes 2.1 ms on an H200
    where its kernels with all scores in memory take 1.9.

    ``trained``: that gradients will be wanted; the pass has to run before `autodiff`, as
    `meta.model.value_and_grad` sees to, so that the gradient is one call, too.

    >>> from meta.ir import parse
    >>> print(meta.passes.fuse_cross_entropy(parse('''
    ... func @main(%x: float32[64, 8], %w: float32[512, 8], %t: int64[64]) -> float32[] {
    ...   %s: float32[64, 512] = dense(%x, %w)
    ...   %y: float32[] = cross_entropy(%s, %t)
    ...   return %y
    ... }'''), least_bytes=0))
    func @main(%x: float32[64, 8], %w: float32[512, 8], %t: int64[64]) -> float32[] {
      %0: (float32[64], float32[64]) = linear_cross_entropies(%x, %w, %t)
      %1: float32[64] = %0.0
      %2: float32[64] = %0.1
      %3: bool[64] = greater_equal(%t, x2=0)
      %4: bool[64] = less(%t, x2=512)
      %5: bool[64] = logical_and(%3, %4)
      %6: float32[] = sum(%1)
      %7: float32[64] = astype(%5, dtype="float32")
      %8: float32[] = sum(%7)
      %y: float32[] = divide(%6, %8)
      return %y
    }
    """
    what = replace(_loss_of_layer, check=partial(_why_not, least_bytes))
    return rewrite(module, what, _without_scores)


def keeps_scores(call: Call) -> bool:
    """Whether a call gives scores another shape, or a wider dtype."""
    if called_op(call) is not op.astype:
        return True
    before, after = tensor_of(call.args[0]).dtype, call.args[1]
    return is_float(before) and bits(after) >= bits(before)


@pattern
def _loss_of_layer(x: Any, weight: Any, bias: Any, target: Any) -> Any:
    through = partial(chain, where=keeps_scores)
    layer = named("layer", operator(op.dense, op.matmul_nt)(x, weight))
    product = named("product", through(layer, *VIEWS, op.astype))
    biased = op.bias_add(product, bias, wildcard("axis")) | op.add(product, bias)
    scores = named("scores", through(biased | product, *VIEWS, op.astype))
    return op.cross_entropy(scores, target)


def _why_not(least_bytes: int, match: Match) -> str | None:
    """Return why the loss stays as it is, or None."""
    types = match.types
    scores, layer, product, bias = (types[n] for n in ("scores", "layer", "product", "bias"))
    if not scores.is_static or prod(scores.static_shape) * bits(scores.dtype) // 8 < least_bytes:
        return "the scores are small, or of extents that are known at run time only"
    if layer.shape != scores.shape:
        return "the scores are of other rows than the product"
    if bias is None:
        return None
    last = types["axis"] in (None, -1, product.ndim - 1)
    if not last or product.ndim < 2 or not bias.shape == product.shape[-1:] == scores.shape[-1:]:
        return "what is added is no vector of the classes"
    return None if bias.dtype == layer.dtype else "the bias is of another dtype"


def _without_scores(match: Match, x: Any, weight: Any, bias: Any, target: Any) -> Any:
    """Return what the loss is, by calls of operators."""
    target = target if target.dtype == "int64" else op.astype(target, "int64")
    losses, _ = op.linear_cross_entropies(x, weight, target, bias)
    counts = op.logical_and(op.greater_equal(target, 0), op.less(target, weight.shape[0]))
    loss = op.sum(losses) / op.sum(op.astype(counts, losses.dtype))
    dtype = tensor_of(match.captures["scores"]).dtype
    return loss if loss.dtype == dtype else op.astype(loss, dtype)
