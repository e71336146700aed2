"""What `meta` does for an entry of torch's database: a function of the entry's arguments, with
arrays in the place of tensors.

Where nothing is said here, it is the entry's own function by way of the converters (`Converted`).
By hand is what results in a value of Python's, and what operators do but no converter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import meta
from meta import random
from meta.base.dtype import is_float
from tools.torch_samples.ambiguous import AMBIGUOUS, Drawn
from tools.torch_samples.converted import Converted
from tools.torch_samples.entries import ENTRIES
from tools.torch_samples.outside import Outside, outside_if

Adapter = Callable[..., Any]


def adapter_of(key: str) -> Adapter:
    """Return what `meta` does for an entry."""
    if key in BY_HAND:
        return BY_HAND[key]
    return Converted(ENTRIES[key].op, once=isinstance(AMBIGUOUS.get(key), Drawn))


def in_wider(key: str, dtypes: Sequence[str], wide: str) -> Adapter:
    """Return an entry's function that is computed in another dtype of arrays of some dtypes, whose
    result is rounded, towards 0, to the dtype of the first one.
    """
    function = Converted(ENTRIES[key].op)

    def applied(input: Any, *args: Any, **kwargs: Any) -> Any:
        if input.dtype not in dtypes:
            return function(input, *args, **kwargs)
        found = function(meta.astype(input, wide), *args, **kwargs)
        several = isinstance(found, tuple | list)
        y = found[0] if several else found
        y = meta.astype(y if is_float(input.dtype) else meta.trunc(y), input.dtype)
        return (y, *found[1:]) if several else y

    return applied


def local_response_norm(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Divide by the squares of neighbouring channels; what has no elements is returned as it is."""
    x = meta.astype(input, "float32") if input.dtype == "int64" and input.size else input
    return Converted(F.local_response_norm)(x, *args, **kwargs)


def _bounded(is_beyond: Callable[..., Any]) -> Adapter:
    """Return a bound whose gradient, where both are equal, is all of the element's, as torch's is,
    and not shared; a NaN on either side stays.
    """

    def applied(input: Any, bound: Any) -> Any:
        y = meta.where(is_beyond(input, bound), bound, input)
        return meta.where(meta.isnan(bound), bound, y) if hasattr(bound, "dtype") else y

    return applied


at_least, at_most = _bounded(meta.less), _bounded(meta.greater)


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Bound below, then above; by numbers or tensors."""
    if isinstance(min, int | float) and isinstance(max, int | float):
        return Converted(torch.clamp)(input, min, max)
    y = input if min is None else at_least(input, min)
    return y if max is None else at_most(y, max)


def tensor_split(input: Any, where: Any, dim: int = 0) -> Any:
    """Cut before indices, which may be a tensor."""
    points = where.numpy().tolist() if hasattr(where, "numpy") else where
    return Converted(torch.tensor_split)(input, points, dim)


def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """Leaky relu with a random slope for every element, or the mean slope."""
    if not training:
        return meta.leaky_relu(input, (lower + upper) / 2)
    slopes = random.uniform(input.shape, low=lower, high=upper, dtype=input.dtype)
    return meta.where(input > 0, input, input * slopes)


def linear_cross_entropy(*args: Any, options: Any = None, **kwargs: Any) -> Any:
    """The loss of a linear layer; how it is cut into chunks makes no difference to the result."""
    return Converted(F.linear_cross_entropy)(*args, **kwargs)


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, **options: Any
) -> Any:
    """The loss of alignments; lengths are arrays or lists."""
    lengths = (
        t if hasattr(t, "dtype") else meta.array(np.asarray(list(t), np.int64))
        for t in (input_lengths, target_lengths)
    )
    return meta.ctc_loss(log_probs, targets, *lengths, **options)


def segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """Reduce stretches of the last of the axes that lengths have."""
    counts = np.diff(offsets.numpy(), axis=-1) if lengths is None else lengths.numpy()
    if axis:
        rows = [
            segment_reduce(row, reduce, lengths=meta.array(c), axis=axis - 1, initial=initial)
            for row, c in zip(data, counts, strict=True)
        ]
        return meta.stack(tuple(rows), 0)
    ends = np.cumsum([0, *counts]).tolist()
    segments = (_reduced(data[a:b], reduce, initial) for a, b in pairwise(ends))
    return meta.stack(tuple(segments), 0)


def _reduced(segment: Any, reduce: str, initial: float | None) -> Any:
    """Return one stretch, reduced from an initial number."""
    shape = segment.shape[1:]
    start = {"max": -math.inf, "min": math.inf, "sum": 0.0, "prod": 1.0, "mean": 0.0}[reduce]
    first = start if initial is None else float(initial)
    if segment.shape[0] == 0:
        nothing = math.nan if reduce == "mean" and initial is None else first
        return meta.full(shape, nothing, segment.dtype)
    if reduce in ("max", "min"):
        choose = meta.max if reduce == "max" else meta.min
        row = meta.full((1, *shape), first, segment.dtype)
        return choose(meta.concat((row, segment), 0), 0)
    if reduce == "prod":
        return meta.prod(segment, 0) * first
    total = meta.sum(segment, 0) + first
    return total / segment.shape[0] if reduce == "mean" else total


def _edges(x: Any, bins: Any, range: Any) -> Any:
    """Return the edges of bins of one axis of numbers."""
    if not isinstance(bins, int):
        return bins
    if range is not None:
        low, high = range
    else:
        low, high = (float(meta.min(x)), float(meta.max(x))) if x.size else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    steps = meta.arange(0, bins + 1, 1, "float64")
    found = meta.where(steps == bins, high, steps * ((high - low) / bins) + low)
    return meta.astype(found, x.dtype)


def histogramdd(
    input: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """Counts, or sums of weights, of points in boxes, and the edges of these."""
    points = meta.reshape(input, (-1, input.shape[-1]))
    count = points.shape[1]
    sizes = (bins,) * count if isinstance(bins, int) else bins
    limits = (None,) * count if range is None else tuple(zip(range[::2], range[1::2], strict=True))
    columns = [points[:, i] for i in np.arange(count).tolist()]
    edges = tuple(map(_edges, columns, sizes, limits))
    shape = tuple(e.shape[0] - 1 for e in edges)
    place = meta.zeros((points.shape[0],), "int64")
    inside = meta.ones((points.shape[0],), "bool")
    for x, e, n in zip(columns, edges, shape, strict=True):
        found = meta.searchsorted(e, x, "right") - 1
        found = meta.where(x == e[n], n - 1, found)
        inside = meta.logical_and(inside, meta.logical_and(x >= e[0], x <= e[n]))
        place = place * n + meta.clip(found, 0, n - 1)
    ones = meta.ones((points.shape[0],), input.dtype)
    share = ones if weight is None else meta.reshape(weight, (-1,))
    share = meta.where(inside, share, 0.0)
    flat = meta.scatter_add(meta.zeros((math.prod(shape),), input.dtype), 0, place, share)
    found = meta.reshape(flat, shape)
    if density:
        found = found / meta.sum(found)
        for i, e in enumerate(edges):
            width = e[1:] - e[:-1]
            found = found / meta.reshape(width, tuple(np.eye(count, dtype=int)[i] * -2 + 1))
    return found, edges


def histogram(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """The counts of one axis."""
    flat = meta.reshape(input, (-1, 1))
    found, edges = histogramdd(flat, (bins,), range, weight, density)
    return found, edges[0]


def lstsq(A: Any, B: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """The least squares solution, residuals, rank and singular values, as a LAPACK driver does."""
    vectors = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    columns = meta.expand_dims(B, -1) if vectors else B
    m, n = A.shape[-2:]
    y = meta.linalg_pinv(A, rcond) @ columns
    rank = Converted(torch.linalg.matrix_rank)(A)
    residuals = meta.zeros((0,), A.dtype)
    if m > n and bool(meta.all(rank == n)) and driver != "gelsy":
        left = columns - A @ y
        residuals = meta.sum(left * left, -2)
    s = meta.linalg_svdvals(A) if driver in ("gelss", "gelsd") else meta.zeros((0,), A.dtype)
    ranked = rank if driver != "gels" else meta.zeros((0,), "int64")
    return meta.squeeze(y, -1) if vectors else y, residuals, ranked, s


def lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """Solve a system whose matrix was decomposed."""

    def swapped(x: Any) -> Any:
        return meta.swapaxes(x, -1, -2)

    if not left:
        return swapped(lu_solve(LU, pivots, swapped(B), adjoint=not adjoint))
    p = Converted(torch.lu_unpack)(LU, pivots, unpack_data=False)[0]
    if adjoint:
        y = meta.linalg_solve_triangular(swapped(LU), B, False)
        return p @ meta.linalg_solve_triangular(swapped(LU), y, True, True)
    y = meta.linalg_solve_triangular(LU, swapped(p) @ B, False, True)
    return meta.linalg_solve_triangular(LU, y, True)


def svd_lowrank(*args: Any, M: Any = None, **kwargs: Any) -> Any:
    """The first singular values and vectors; after a subtraction, what is left is of full rank."""
    outside_if(M is not None, Outside.RANDOM)
    return Converted(ENTRIES["svd_lowrank"].op)(*args, **kwargs)


def ndtri(input: Any) -> Any:
    """Where the normal distribution function has a value."""
    x = input if is_float(input.dtype) else meta.astype(input, "float32")
    return math.sqrt(2) * meta.erfinv(2 * x - 1)


POOLS = [f"nn.functional.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)]

BY_HAND: dict[str, Adapter] = {
    "_segment_reduce|lengths": segment_reduce,
    "_segment_reduce|offsets": segment_reduce,
    "clamp": clamp,
    "clamp_max": at_most,
    "clamp_min": at_least,
    "histogram": histogram,
    "histogramdd": histogramdd,
    "linalg.lstsq": lstsq,
    "linalg.lstsq|grad_oriented": lambda A, B, *, driver=None: lstsq(A, B, driver=driver)[:2],
    "linalg.lu_solve": lu_solve,
    "lu_solve": lambda b, LU_data, LU_pivots: lu_solve(LU_data, LU_pivots, b),
    "matrix_exp": in_wider("matrix_exp", ("bfloat16",), "float32"),
    "nn.functional.ctc_loss": ctc_loss,
    "nn.functional.linear_cross_entropy|chunked": linear_cross_entropy,
    "nn.functional.linear_cross_entropy|chunked_none": linear_cross_entropy,
    "nn.functional.local_response_norm": local_response_norm,
    "nn.functional.rrelu": rrelu,
    "resize_": lambda input, size: meta.reshape(input, tuple(size)),
    "resize_as_": meta.reshape_like,
    "special.ndtri": ndtri,
    "svd_lowrank": svd_lowrank,
    "tensor_split": tensor_split,
    # Of int64 converters refuse them, as floating point does not hold it exactly.
    **{key: in_wider(key, ("int64",), "float64") for key in POOLS},
}
"""By entry, the adapters that are written by hand."""
