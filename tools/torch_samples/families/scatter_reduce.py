"""Writing by index together with a reduction, and undoing a pooling."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import at_least_1d
from tools.torch_samples.decline import decline_if
from tools.torch_samples.families.indexing import along
from tools.torch_samples.families.windows import every


def summed(input: Any, dim: int, index: Any, src: Any, include_self: bool) -> tuple[Any, Any]:
    """Return sums of what an index brings together, and of how many elements they are."""
    start, count = input, meta.ones_like(input)
    if not include_self:
        nothing = meta.zeros_like(src)
        start, count = (meta.scatter(t, index, nothing, dim) for t in (input, count))
    ones = meta.ones_like(src)
    return meta.scatter_add(start, index, src, dim), meta.scatter_add(count, index, ones, dim)


def mean_of(total: Any, count: Any) -> Any:
    """Return quotients, of integers rounded down."""
    return (meta.floor_divide if "int" in total.dtype else meta.divide)(total, count)


def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """The sum or mean of elements with one index."""
    x, places, values = map(at_least_1d, (input, index, src))
    total, count = summed(x, dim, places, values, include_self)
    return meta.reshape(total if reduce == "sum" else mean_of(total, count), input.shape)


def index_reduce(
    input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """The mean of slices with one index."""
    decline_if(reduce != "mean", f"the reduction {reduce!r}")
    x, rows = map(at_least_1d, (input, source))
    total, count = summed(x, dim, along(x, dim, at_least_1d(index)), rows, include_self)
    return meta.reshape(mean_of(total, count), input.shape)


def max_unpool(dims: int) -> Any:
    """Return what writes maxima back to where max pooling found them, and 0 elsewhere."""

    def unpooled(
        input: Any,
        indices: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Any:
        lead = input.shape[:-dims]
        if output_size is None:
            kernel, border = every(kernel_size, dims), every(padding, dims)
            steps = every(stride, dims) if stride else kernel
            extents = zip(input.shape[-dims:], kernel, steps, border, strict=True)
            size = tuple((n - 1) * s - 2 * p + k for n, k, s, p in extents)
        else:
            size = tuple(output_size)[-dims:]
        flat = meta.zeros((*lead, math.prod(size)), input.dtype)
        places, values = (meta.reshape(t, (*lead, -1)) for t in (indices, input))
        return meta.reshape(meta.scatter(flat, places, values, -1), (*lead, *size))

    return unpooled


ADAPTERS = {
    "index_reduce|mean": index_reduce,
    "nn.functional.max_unpool1d": max_unpool(1),
    "nn.functional.max_unpool1d|grad": max_unpool(1),
    "nn.functional.max_unpool2d": max_unpool(2),
    "nn.functional.max_unpool2d|grad": max_unpool(2),
    "nn.functional.max_unpool3d": max_unpool(3),
    "nn.functional.max_unpool3d|grad": max_unpool(3),
    "scatter_reduce|mean": scatter_reduce,
    "scatter_reduce|sum": scatter_reduce,
}
