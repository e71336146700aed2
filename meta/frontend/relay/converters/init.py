"""Converters of operators that make tensors out of numbers."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite
from meta.frontend.core.arithmetic import cast_to, number_in
from meta.frontend.relay.arguments import as_integers, ints, known_number
from meta.frontend.relay.registry import relay


@relay("zeros", op.zeros)
def zeros(*, shape: tuple[int, ...] | None, dtype: str, call: CallSite) -> Any:
    """Without a dtype float32."""
    return op.zeros(ints(shape), dtype or "float32", str(call.device))


@relay("ones", op.ones)
def ones(*, shape: tuple[int, ...] | None, dtype: str, call: CallSite) -> Any:
    """Without a dtype float32."""
    return op.ones(ints(shape), dtype or "float32", str(call.device))


@relay("full", op.full, op.broadcast_to)
def full(fill_value: Any, *, shape: tuple[int, ...] | None, dtype: str, call: CallSite) -> Any:
    """Without a dtype that of the number."""
    wanted = dtype or fill_value.dtype
    number = known_number(fill_value)
    if number is not None:
        return op.full(number_in(number, wanted), ints(shape), wanted, str(call.device))
    return op.broadcast_to(cast_to(op.reshape(fill_value, ()), wanted), ints(shape))


@relay("full_like", op.full_like, op.broadcast_to_like)
def full_like(data: Any, fill_value: Any) -> Any:
    """In the dtype of the data."""
    number = known_number(fill_value)
    if number is not None:
        return op.full_like(data, number_in(number, data.dtype))
    return op.broadcast_to_like(cast_to(op.reshape(fill_value, ()), data.dtype), data)


@relay("arange", op.arange, op.dynamic_arange, ignore=("start", "stop", "step"))
def arange(start: Any, stop: Any, step: Any, *, dtype: str, call: CallSite) -> Any:
    """Of scalars that are not known the length depends on the data."""
    first, last, by = known_number(start), known_number(stop), known_number(step)
    if first is None or last is None or by is None:
        return op.dynamic_arange(start, stop, step, dtype)
    return op.arange(first, last, by, dtype, str(call.device))


@relay("one_hot", op.one_hot)
def one_hot(
    indices: Any, on_value: Any, off_value: Any, *, depth: int, axis: int, dtype: str
) -> Any:
    """Without a dtype that of the value."""
    return op.one_hot(
        as_integers(indices), on_value, off_value, depth, axis, dtype or on_value.dtype
    )
