"""The Array API standard, 2024.12, as a namespace: ``xp = x.__array_namespace__()``.

A name here is the operator or function of `meta` of that name. The files of this folder have what
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
from meta.runtime.ndarray import asarray, from_dlpack

__array_api_version__ = "2024.12"
newaxis = None

_SAME = (
    *("abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "asin", "asinh"),
    *("atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift"),
    *("bitwise_or", "bitwise_right_shift", "bitwise_xor", "broadcast_arrays", "broadcast_to"),
    *("ceil", "concat", "copysign", "cos", "cosh", "count_nonzero", "diff", "divide", "empty"),
    *("empty_like", "equal", "exp", "expand_dims", "expm1", "eye", "flip", "floor", "floor_divide"),
    *("greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan", "less"),
    *("less_equal", "linspace", "log", "log10", "log1p", "log2", "logaddexp", "logical_and"),
    *("logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose", "max", "maximum"),
    *("mean", "min", "minimum", "moveaxis", "multiply", "negative", "nextafter", "nonzero"),
    *("not_equal", "ones", "permute_dims", "positive", "pow", "reciprocal", "roll"),
    *("round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "squeeze", "stack", "subtract"),
    *("take", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "unique_all"),
    *("unique_counts", "unique_inverse", "unique_values", "unstack", "vecdot", "where", "zeros"),
)
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
