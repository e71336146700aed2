"""Kernels of reductions that are not of rows: down the columns of an array, or very long.

Many threads share each result. Where the results lie next to each other in what is read, so do the
threads, and each reduces a column (`columns`); where what is reduced does, a thread block reduces a
slice of it (`slices`). Several reductions of the same axes are one kernel, with what is computed of
the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta.dialect.tvm.schedule_cuda.columns import Columns
from meta.dialect.tvm.schedule_cuda.reduction_axes import groups
from meta.dialect.tvm.schedule_cuda.slices import Slices
from meta.dialect.tvm.schedule_cuda.walk import Made, Part, read_outside


def kernel(parts: Sequence[Part], inner: set[Any]) -> Made | None:
    """Return the first reductions that share their axes, stages of their results, and kernels."""
    for axes, reductions, after in groups(parts):
        taken = [*reductions, *after]
        outside = read_outside(taken, parts, inner)
        for way in (Columns, Slices):
            made = way(axes, reductions, after, outside)
            if made.fits:
                return (taken, *made.kernels())
    return None
