"""Reductions, running results and order statistics."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import axes, axis_of, in_dtype, like_1d, narrowed, real
from tools.torch_samples.ties import Tied


def total(reduce: Any) -> Any:
    """Return torch's form of `sum` or `prod`: an axis or several, keepdim, and a dtype."""

    def reduced(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return in_dtype(reduce(in_dtype(input, dtype), axes(input, dim), keepdim), dtype)

    return reduced


def over(reduce: Any) -> Any:
    """Return torch's form of a reduction: an axis or several, and keepdim."""

    def reduced(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return reduce(input, axes(input, dim), keepdim)

    return reduced


def moment(reduce: Any) -> Any:
    """Return torch's form of `var` or `std`, with either of its ways to say the correction."""

    def reduced(
        input: Any,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        count = int(unbiased) if correction is None else correction
        return reduce(input, axes(input, dim), keepdim, correction=count)

    return reduced


def and_mean(reduce: Any) -> Any:
    """Return torch's form of a moment together with the mean."""
    both = moment(reduce)

    def reduced(input: Any, *args: Any, keepdim: bool = False, **kwargs: Any) -> Any:
        dim = kwargs.get("dim", args[0] if args else None)
        dim = None if isinstance(dim, bool) else dim
        return both(input, *args, keepdim=keepdim, **kwargs), meta.mean(
            input, axes(input, dim), keepdim
        )

    return reduced


def with_place(choose: Any) -> Any:
    """Return torch's max or min along an axis: the elements and their indices."""

    def chosen(input: Any, dim: int, keepdim: bool = False) -> Any:
        if input.ndim == 0:
            return meta.copy(input), meta.zeros((), "int64")
        place = choose(input, dim, True)
        values = meta.take_along_axis(input, place, dim)
        return (values, place) if keepdim else (meta.squeeze(values, dim), meta.squeeze(place, dim))

    return chosen


def nth(input: Any, k: int, dim: int, keepdim: bool) -> Any:
    """Return the element of rank ``k`` along an axis, and its index."""
    if input.ndim == 0:
        return meta.copy(input), meta.zeros((), "int64")
    place = narrowed(meta.argsort(input, dim), dim, k, k + 1)
    values = meta.take_along_axis(input, place, dim)
    return (values, place) if keepdim else (meta.squeeze(values, dim), meta.squeeze(place, dim))


def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements, or along an axis with its index."""
    if dim is None:
        flat = meta.reshape(input, (-1,))
        return nth(flat, (input.size - 1) // 2, 0, False)[0]
    count = input.shape[dim] if input.ndim else 1
    return nth(input, (count - 1) // 2, dim, keepdim)


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The largest or smallest elements along an axis, and their indices."""
    if input.ndim == 0:
        return meta.copy(input), meta.zeros((), "int64")
    return meta.topk(input, k, dim, largest, sorted)


def quantile(
    input: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """Quantiles between the two nearest elements, as `interpolation` says."""
    x = meta.reshape(input, (-1,)) if dim is None or input.ndim == 0 else input
    axis = 0 if dim is None or input.ndim == 0 else axis_of(input, dim)
    points = [q] if isinstance(q, float) else list(meta.reshape(q, (-1,)))
    ordered = meta.sort(x, axis)
    found = []
    for point in points:
        place = point * (x.shape[axis] - 1)
        low, high = math.floor(float(place)), math.ceil(float(place))
        # Only "linear" has a slope by q; the other three choose.
        nearest = round(float(place)) - low
        part = {"linear": place - low, "lower": 0.0, "higher": 1.0, "midpoint": 0.5}
        weight = part.get(interpolation, float(nearest))
        at = [narrowed(ordered, axis, i, i + 1) for i in (low, high)]
        found.append(at[0] + (at[1] - at[0]) * weight)
    y = meta.stack(tuple(found), 0)
    if dim is None:
        y = meta.reshape(y, (len(found), *(1,) * (input.ndim * keepdim)))
    elif not keepdim or input.ndim == 0:
        y = meta.squeeze(y, axis + 1)
    return meta.squeeze(y, 0) if isinstance(q, float) or q.ndim == 0 else y


def norm(
    input: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """The norm of vectors: (sum of |x|**p)**(1 / p), or the largest or smallest |x|."""
    x = in_dtype(input, dtype)
    return meta.linalg.vector_norm(x, axis=axes(x, dim), keepdims=keepdim, ord=ord)


def cumulative(scan: Any) -> Any:
    """Return torch's form of cumsum or cumprod."""

    def along(input: Any, dim: int, *, dtype: Any = None) -> Any:
        kind = dtype or (input.dtype if "float" in input.dtype else "int64")
        return like_1d(scan, input, dim, kind)

    return along


def nan_as(value: float, reduce: Any) -> Any:
    """Return a reduction to which NaN counts as a number."""

    def reduced(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        x = meta.where(meta.isnan(input), value, input)
        return reduce(in_dtype(x, dtype), axes(input, dim), keepdim)

    return reduced


def nanmean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean of what is not NaN."""
    x, at = in_dtype(input, dtype), axes(input, dim)
    there = meta.cast_like(meta.logical_not(meta.isnan(x)), x)
    summed = meta.sum(meta.where(meta.isnan(x), 0, x), at, keepdim)
    return summed / meta.sum(there, at, keepdim)


def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The norm of a difference."""
    return norm(input - other, p)


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """log(sum(exp(x)))."""
    return meta.logsumexp(real(input), axes(input, dim), keepdim)


ADAPTERS = {
    "all": over(meta.all),
    "amax": over(meta.max),
    "amin": over(meta.min),
    "aminmax": lambda input, *, dim=None, keepdim=False: (
        meta.min(input, axes(input, dim), keepdim),
        meta.max(input, axes(input, dim), keepdim),
    ),
    "any": over(meta.any),
    "argmax": over(meta.argmax),
    "argmin": over(meta.argmin),
    "argsort": Tied(
        lambda input, dim=-1, descending=False, stable=False: like_1d(
            meta.argsort, input, dim, descending, stable
        )
    ),
    "count_nonzero": lambda input, dim=None: meta.sum(
        meta.astype(meta.not_equal(input, 0), "int64"), axes(input, dim)
    ),
    "cumprod": cumulative(meta.cumprod),
    "cumsum": cumulative(meta.cumsum),
    "dist": dist,
    "kthvalue": Tied(lambda input, k, dim=-1, keepdim=False: nth(input, k - 1, dim, keepdim), 1),
    "linalg.vector_norm": norm,
    "logsumexp": logsumexp,
    "max|reduction_no_dim": meta.max,
    "max|reduction_with_dim": with_place(meta.argmax),
    "mean": total(meta.mean),
    "median": Tied(median, dim=None),
    "min|reduction_no_dim": meta.min,
    "min|reduction_with_dim": with_place(meta.argmin),
    "msort": Tied(lambda input: like_1d(meta.sort, input, 0)),
    "nanmean": nanmean,
    "nansum": nan_as(0, meta.sum),
    "norm": lambda input, p=2, dim=None, keepdim=False, dtype=None: norm(
        input, 2 if p == "fro" else p, dim, keepdim, dtype
    ),
    "norm|fro": lambda input, p="fro", dim=None, keepdim=False: norm(input, 2, dim, keepdim),
    "norm|inf": lambda input, p, dim=None, keepdim=False: norm(input, p, dim, keepdim),
    "prod": total(meta.prod),
    "quantile": quantile,
    "sort": Tied(
        lambda input, dim=-1, descending=False, stable=False: (
            like_1d(meta.sort, input, dim, descending, stable),
            like_1d(meta.argsort, input, dim, descending, stable),
        )
    ),
    "std": moment(meta.std),
    "std_mean": and_mean(meta.std),
    "std_mean|unbiased": and_mean(meta.std),
    "std|unbiased": moment(meta.std),
    "sum": total(meta.sum),
    "topk": Tied(topk, 1),
    "var": moment(meta.var),
    "var_mean": and_mean(meta.var),
    "var_mean|unbiased": and_mean(meta.var),
    "var|unbiased": moment(meta.var),
}
