"""The Array API standard, 2024.12, as a namespace: ``xp = x.__array_namespace__()``.

A name here is the operator or function of `meta` of that name; operators state that the standard
has them (`@op(names=...)`). The files of this folder have what
differs from the standard in `meta` itself: other arguments, defaults, or dtypes of results.
docs/array_api.md says where this namespace differs.
"""

from __future__ import annotations

import sys
from math import e, inf, nan, pi

from meta import fft, linalg, op
from meta.array_api.creation import (
    astype,
    full,
    full_like,
    meshgrid,
    ones_like,
    zeros_like,
)
from meta.array_api.elementwise import clip, conj, real, remainder
from meta.array_api.info import DTYPES, __array_namespace_info__
from meta.array_api.rearranging import (
    repeat,
    reshape,
    take_along_axis,
)
from meta.array_api.reduction import (
    argsort,
    cumulative_prod,
    cumulative_sum,
    prod,
    searchsorted,
    sort,
    std,
    sum,
    var,
)
from meta.base.dtype_info import can_cast, finfo, iinfo, isdtype, result_type
from meta.base.methods import Methods
from meta.op.core.names import named_in
from meta.runtime.ndarray import asarray, from_dlpack

__array_api_version__ = "2024.12"
newaxis = None

_COMPOSED = (
    *("broadcast_arrays", "count_nonzero", "diff", "empty", "empty_like", "eye", "linspace"),
    *("matrix_transpose", "moveaxis", "positive", "tensordot", "unique_all", "unique_counts"),
    *("unique_inverse", "unique_values", "unstack", "vecdot"),
)
"""Functions of the standard that are composed of operators."""
_SAME = (*named_in("array_api"), *_COMPOSED)
globals().update({name: getattr(op, name) for name in _SAME})
globals().update({name: name for name in DTYPES})

__all__ = [
    *_SAME,
    *DTYPES,
    "__array_api_version__",
    "__array_namespace_info__",
    "argsort",
    "asarray",
    "astype",
    "can_cast",
    "clip",
    "conj",
    "cumulative_prod",
    "cumulative_sum",
    "e",
    "fft",
    "finfo",
    "from_dlpack",
    "full",
    "full_like",
    "iinfo",
    "inf",
    "isdtype",
    "linalg",
    "meshgrid",
    "nan",
    "newaxis",
    "ones_like",
    "pi",
    "prod",
    "real",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "searchsorted",
    "sort",
    "std",
    "sum",
    "take_along_axis",
    "var",
    "zeros_like",
]
Methods.namespace = sys.modules[__name__]
