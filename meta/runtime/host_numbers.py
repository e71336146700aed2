"""Tensors of host numbers: Python's, numpy's scalars, and nested lists of them.

A number goes to the dtype asked for at once, so that float64 and int64 have all its digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from meta.base.dtype import TO_NUMPY, TO_TORCH, convertible
from meta.base.number import refused, whole_range

_EXACT = 2**53
"""From here on float64 does not have every integer."""


def from_numbers(obj: object, values: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """Return a tensor of ``dtype``. ``values``: what numpy makes of ``obj``.

    Fractions are dropped where integers are asked for; for bool, what is not 0 is True. Raises
    NumberOutOfRange for what the integers do not reach, as NaN and the infinities.
    """
    bounds = whole_range(dtype)
    if bounds is None or values.dtype.kind == "c":
        if (
            values.dtype.kind not in "iubc"
        ):  # floats, which float64 has all, and ints beyond 64 bits
            values = values.astype(np.float64)
        tensor = _tensor(values)
        return convertible(tensor, TO_TORCH[dtype]).to(TO_TORCH[dtype])
    if dtype == "bool":
        return _tensor(values != 0)
    if values.dtype.kind not in "iubO" and bool((abs(values.astype(np.float64)) >= _EXACT).any()):
        values = np.asarray(obj, dtype=object)  # ints among floats, which numpy has rounded
    if values.dtype.kind == "O":
        whole = [_whole(v, dtype, bounds) for v in values.reshape(-1)]
        return _tensor(np.array(whole, TO_NUMPY[dtype]).reshape(values.shape))
    if values.dtype.kind not in "iub":
        values = values.astype(np.float64)
        for v in values[~np.isfinite(values)][:1]:
            _whole(v, dtype, bounds)
        values = np.trunc(values)
    if values.size:
        for extreme in (values.min(), values.max()):
            _whole(extreme, dtype, bounds)
    return _tensor(values.astype(TO_NUMPY[dtype]))


def _whole(value: Any, dtype: str, bounds: tuple[int, int]) -> int:
    number = value.item() if isinstance(value, np.generic) else value
    if not math.isfinite(number) or not bounds[0] <= math.trunc(number) <= bounds[1]:
        raise refused(number, dtype, hint="a wider dtype, or another number")
    return int(number)


def _tensor(values: np.ndarray[Any, Any]) -> torch.Tensor:
    if values.dtype == np.ulonglong:
        values = values.view(np.uint64)  # numpy has two types of this width
    return torch.from_numpy(np.array(values, order="C"))
