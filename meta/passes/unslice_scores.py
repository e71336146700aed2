"""A loss of a part of the scores is computed of all of them, with labels that are left out."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from meta import op
from meta.ir import Module
from meta.op.core.slicing import slice_ranges
from meta.passes.fuse_cross_entropy import keeps_scores
from meta.passes.pattern import Match, chain, named, pattern, rewrite, wildcard
from meta.passes.simplify.shapes import VIEWS

LEAST_SHARE = 0.75
"""The part of the rows that is enough to compute with all of them."""
IGNORED = -100
"""A label that is no class."""


def unslice_scores(module: Module, *, trained: Iterable[int] | None = None) -> Module:
    """Compute `cross_entropy` of rows that are sliced from scores of all of them.

    A model that predicts the next token has scores for the last one, too, which the loss leaves
    out: a slice is a copy of all scores, and its gradient another one with zeros behind. Here the
    labels get the rows that are missing, and leave them out.

    ``trained``: that gradients will be wanted; the pass has to run before `autodiff`.

    >>> from meta.ir import parse
    >>> print(meta.passes.unslice_scores(parse('''
    ... func @main(%x: float32[2, 8, 512], %t: int64[14]) -> float32[] {
    ...   %0: float32[2, 7, 512] = strided_slice(%x, begin=(0, 0), end=(2, 7))
    ...   %1: float32[14, 512] = reshape(%0, shape=(14, 512))
    ...   %4: float32[] = cross_entropy(%1, %t)
    ...   return %4
    ... }''')))
    func @main(%x: float32[2, 8, 512], %t: int64[14]) -> float32[] {
      %0: int64[2, 7] = reshape(%t, shape=(2, 7))
      %1: int64[2, 8] = pad(%0, pad_width=(0, 0, 0, 1), pad_value=-100)
      %2: float32[16, 512] = reshape(%x, shape=(16, 512))
      %3: int64[16] = reshape(%1, shape=(16,))
      %4: float32[] = cross_entropy(%2, %3)
      return %4
    }
    """
    return rewrite(module, _sliced_loss, _unsliced_loss)


def _why_not(match: Match) -> str | None:
    """Return why the loss stays as it is, or None."""
    x, part, scores = (match.types[n] for n in ("x", "part", "scores"))
    if not x.is_static or not part.is_static or not scores.is_static:
        return "extents are known at run time only"
    if not x.ndim or len({x.shape[-1], part.shape[-1], scores.shape[-1]}) != 1:
        return "the classes are no whole last axis"
    if prod(part.static_shape) < LEAST_SHARE * prod(x.static_shape):
        return "too many rows would be computed in vain"
    steps = (r.step for r in _ranges(match) if r is not None)
    return None if all(step == 1 for step in steps) else "rows in between are left out"


def _ranges(match: Match) -> list[range | None]:
    given = (match.types[n] for n in ("begin", "end", "strides", "mode"))
    return list(slice_ranges(match.types["x"].shape, *given))


@pattern(check=_why_not)
def _sliced_loss(x: Any, target: Any) -> Any:
    options = map(wildcard, ("begin", "end", "strides", "mode"))
    part = named("part", op.strided_slice(x, *options))
    scores = named("scores", chain(part, *VIEWS, op.copy, op.astype, where=keeps_scores))
    return op.cross_entropy(scores, target)


def _unsliced_loss(match: Match, x: Any, target: Any) -> Any:
    part, scores = match.types["part"], match.types["scores"]
    rows, classes = part.static_shape[:-1], scores.static_shape[-1]
    widths: list[int] = []
    ranges = [*_ranges(match), *[None] * len(rows)]
    for extent, taken in zip(x.shape[:-1], ranges, strict=False):
        widths += (0, 0) if taken is None else (taken.start, extent - taken.stop)
    labels = target if target.dtype == "int64" else op.astype(target, "int64")
    labels = op.pad.plain(op.reshape(labels, rows), tuple(widths), IGNORED)
    count = prod(x.shape[:-1])
    wide = x if x.dtype == scores.dtype else op.astype(x, scores.dtype)
    return op.cross_entropy(op.reshape(wide, (count, classes)), op.reshape(labels, (count,)))
