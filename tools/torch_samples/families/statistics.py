"""Medians, quantiles and modes, counts of values, and distinct values."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import axis_of
from tools.torch_samples.families.reductions import median, quantile
from tools.torch_samples.ties import Tied


def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of what is not NaN."""
    if input.ndim == 0 or "float" not in input.dtype:
        return median(input, dim, keepdim)
    x = meta.reshape(input, (-1,)) if dim is None else input
    axis = 0 if dim is None else dim
    count = meta.sum(meta.astype(meta.logical_not(meta.isnan(x)), "int64"), axis, True)
    order = meta.argsort(x, axis)
    place = meta.take_along_axis(order, meta.maximum((count - 1) // 2, 0), axis)
    values = meta.take_along_axis(x, place, axis)
    if dim is None:
        return meta.reshape(values, ())
    return (values, place) if keepdim else (meta.squeeze(values, dim), meta.squeeze(place, dim))


def nanquantile(
    input: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """Quantiles of what is not NaN, of which there is nothing in torch's samples."""
    return quantile(input, q, dim, keepdim, interpolation=interpolation)


def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent element along an axis, the smallest of several, and an index of it."""
    if input.ndim == 0:
        return meta.copy(input), meta.zeros((), "int64")
    at = axis_of(input, dim)
    equal = meta.expand_dims(input, at) == meta.expand_dims(input, at + 1)
    count = meta.sum(meta.astype(equal, "int64"), at)
    most = count == meta.max(count, at, True)
    numbers = meta.astype(input, "int64") if input.dtype == "bool" else input
    bound = math.inf if "float" in input.dtype else meta.iinfo("int64").max
    place = meta.argmin(meta.where(most, numbers, bound), at, True)
    values = meta.take_along_axis(input, place, at)
    return (values, place) if keepdim else (meta.squeeze(values, at), meta.squeeze(place, at))


def masked_median(
    input: Any, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Any:
    """The lower median of what the mask lets through, NaN if that is nothing."""
    x = input if dtype is None else meta.astype(input, dtype)
    if mask is not None:
        x = meta.where(mask, x, math.nan)
    if x.ndim == 0:
        return meta.copy(x)
    hidden = meta.isnan(x)
    count = meta.sum(meta.astype(meta.logical_not(hidden), "int64"), dim, True)
    order = meta.argsort(x, dim)
    place = meta.take_along_axis(order, meta.maximum((count - 1) // 2, 0), dim)
    values = meta.take_along_axis(x, place, dim)
    return values if keepdim else meta.squeeze(values, dim)


def distinct(consecutive: bool) -> Any:
    """Return unique or unique_consecutive: of elements, or of the slices along an axis."""

    def found(
        input: Any,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        if dim is None and not consecutive:
            return meta.unique(input, return_inverse, return_counts)
        slices = meta.reshape(input, (-1,)) if dim is None else input
        axis = 0 if dim is None else axis_of(input, dim)
        first, inverse, counts = runs(slices, axis, consecutive)
        values = meta.take(slices, first, axis)
        places = meta.reshape(inverse, input.shape) if dim is None else inverse
        given = [r for asked, r in ((return_inverse, places), (return_counts, counts)) if asked]
        return (values, *given) if given else values

    return found


def runs(slices: Any, axis: int, consecutive: bool) -> tuple[Any, Any, Any]:
    """Return where each run of equal slices begins, in which one each is, and their lengths; of
    consecutive slices, or of all after they are sorted.
    """
    count = slices.shape[axis]
    extent = slices.size // count if count else 1
    rows = meta.reshape(meta.moveaxis(slices, axis, 0), (count, extent))
    order = meta.arange(0, count, 1, "int64")
    for column in reversed(range(0 if consecutive else extent)):
        order = order[meta.argsort(rows[:, column][order], 0, False, True)]
    rows = meta.take(rows, order, 0)
    if not count:
        return order, order, order
    new = meta.any(rows[1:] != rows[:-1], 1) if extent else meta.zeros((count - 1,), "bool")
    new = meta.concat((meta.ones((1,), "bool"), new), 0)
    group = meta.cumsum(meta.astype(new, "int64"), 0, "int64") - 1
    begins = meta.nonzero(new)[0]
    ends = meta.concat((begins[1:], meta.full((1,), count, "int64")), 0)
    inverse = meta.scatter(meta.zeros_like(order), 0, order, group)
    return order[begins], inverse, ends - begins


def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements are in each of so many bins of one width."""
    x = meta.reshape(meta.astype(input, "float64"), (-1,))
    if min == max:
        min, max = (float(meta.min(x)), float(meta.max(x))) if x.size else (min, max)
    if min == max:
        min, max = min - 1, max + 1
    inside = meta.logical_and(x >= min, x <= max)
    place = meta.astype(meta.floor((x - min) * bins / (max - min)), "int64")
    place = meta.clip(place, 0, bins - 1)
    counts = meta.scatter_add(meta.zeros((bins,), "int64"), 0, place, meta.astype(inside, "int64"))
    return meta.astype(counts, input.dtype)


def edges_of(x: Any, bins: Any, range: Any) -> Any:
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
    edges = tuple(edges_of(points[:, i], sizes[i], limits[i]) for i in range_of(count))
    shape = tuple(e.shape[0] - 1 for e in edges)
    place = meta.zeros((points.shape[0],), "int64")
    inside = meta.ones((points.shape[0],), "bool")
    for i in range_of(count):
        x, e, n = points[:, i], edges[i], shape[i]
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
            row = tuple(-1 if j == i else 1 for j in range_of(count))
            found = found / meta.reshape(e[1:] - e[:-1], row)
    return found, edges


range_of = range


def histogram(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """The counts of one axis."""
    flat = meta.reshape(input, (-1, 1))
    found, edges = histogramdd(flat, (bins,), range, weight, density)
    return found, edges[0]


ADAPTERS = {
    "histc": histc,
    "histogram": histogram,
    "histogramdd": histogramdd,
    "masked.median": Tied(masked_median),
    "mode": Tied(mode),
    "nanmedian": Tied(nanmedian, dim=None),
    "nanquantile": nanquantile,
    "unique": distinct(consecutive=False),
    "unique_consecutive": lambda input, return_inverse=False, return_counts=False, dim=None: (
        distinct(consecutive=True)(input, True, return_inverse, return_counts, dim)
    ),
}
