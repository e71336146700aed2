"""Running maxima and sums of exponentials, each a reduction of what came before."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import like_1d, wide


def before(x: Any, dim: int, hidden: float) -> Any:
    """Return, on a new last axis, all elements up to each along an axis, which comes before it."""
    last = meta.swapaxes(x, dim, -1)
    count = last.shape[-1]
    seen = meta.tril(meta.ones((count, count), "int64"))
    return meta.where(seen, meta.expand_dims(last, -2), hidden)


def running(reduce: Any, hidden: float) -> Any:
    """Return cummax or cummin: the extreme so far, and where it was last."""

    def place_of(x: Any, dim: int) -> Any:
        rows = before(x, dim, hidden)
        extreme = reduce(rows, -1, True)
        positions = meta.arange(0, rows.shape[-1], 1, "int64")
        seen = meta.tril(meta.ones(rows.shape[-2:], "int64"))
        found = meta.logical_and(seen, rows == extreme)
        return meta.swapaxes(meta.max(meta.where(found, positions, 0), -1), dim, -1)

    def along(input: Any, dim: int) -> Any:
        if input.ndim == 0:
            return meta.copy(input), meta.zeros((), "int64")
        place = place_of(input, dim)
        return meta.take_along_axis(input, place, dim), place

    return along


def logcumsumexp(input: Any, dim: int) -> Any:
    """log of the running sum of exp(x)."""

    def along(x: Any, axis: int) -> Any:
        rows = before(x, axis, -math.inf)
        return meta.swapaxes(meta.logsumexp(rows, -1), axis, -1)

    return like_1d(along, input, dim)


ADAPTERS = {
    "cummax": running(meta.max, -math.inf),
    "cummin": running(meta.min, math.inf),
    "logcumsumexp": wide(logcumsumexp),
}
