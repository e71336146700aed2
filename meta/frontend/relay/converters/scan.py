"""Converters of sums and products of the elements before each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.frontend.core import CallSite
from meta.frontend.relay.arguments import result_dtype
from meta.frontend.relay.registry import relay


def _scan(
    scan: Callable[..., Any],
    data: Any,
    axis: int | None,
    dtype: str,
    exclusive: bool | None,
    call: CallSite,
) -> Any:
    """Without an axis the data are flattened. Bools count as int32."""
    own = "int32" if data.dtype == "bool" else data.dtype
    if axis is None:
        data, axis = op.reshape(data, (-1,)), 0
    return scan(data, axis, dtype or result_dtype(call, own), bool(exclusive))


@relay("cumsum", op.cumsum)
def cumsum(
    data: Any, *, axis: int | None, dtype: str, exclusive: bool | None, call: CallSite
) -> Any:
    """Sums of the elements up to each, or before each."""
    return _scan(op.cumsum, data, axis, dtype, exclusive, call)


@relay("cumprod", op.cumprod)
def cumprod(
    data: Any, *, axis: int | None, dtype: str, exclusive: bool | None, call: CallSite
) -> Any:
    """Products of the elements up to each, or before each."""
    return _scan(op.cumprod, data, axis, dtype, exclusive, call)
