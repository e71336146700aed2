"""Writing by index together with a reduction, and undoing a pooling."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import at_least_1d
from tools.torch_samples.families.windows import every


def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Elements reduced at indices of their own."""
    x, places, values = map(at_least_1d, (input, index, src))
    if input.dtype == "bool":  # products and extremes of which are those of 0 and 1
        x, values = meta.astype(x, "int64"), meta.astype(values, "int64")
        found = meta.scatter_reduce(x, dim, places, values, reduce, include_self)
        return meta.astype(meta.reshape(found, input.shape), "bool")
    found = meta.scatter_reduce(x, dim, places, values, reduce, include_self)
    return meta.reshape(found, input.shape)


def index_reduce(
    input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Slices reduced at indices of an axis."""
    x, rows = map(at_least_1d, (input, source))
    found = meta.index_reduce(x, dim, at_least_1d(index), rows, reduce, include_self)
    return meta.reshape(found, input.shape)


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
        return meta.reshape(meta.scatter(flat, -1, places, values), (*lead, *size))

    return unpooled


ADAPTERS = {
    "index_reduce|amax": index_reduce,
    "index_reduce|amin": index_reduce,
    "index_reduce|mean": index_reduce,
    "index_reduce|prod": index_reduce,
    "nn.functional.max_unpool1d": max_unpool(1),
    "nn.functional.max_unpool1d|grad": max_unpool(1),
    "nn.functional.max_unpool2d": max_unpool(2),
    "nn.functional.max_unpool2d|grad": max_unpool(2),
    "nn.functional.max_unpool3d": max_unpool(3),
    "nn.functional.max_unpool3d|grad": max_unpool(3),
    "scatter_reduce|amax": scatter_reduce,
    "scatter_reduce|amin": scatter_reduce,
    "scatter_reduce|mean": scatter_reduce,
    "scatter_reduce|prod": scatter_reduce,
    "scatter_reduce|sum": scatter_reduce,
}
