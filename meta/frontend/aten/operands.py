"""Operands of a converter in the form that base operators take.

torch takes a Python number beside a tensor of any dtype, and wraps it around where an integer dtype
cannot hold it; an extent counts as a number, too. Base operators take a number that fits, and no
extents. `promote_operands` promotes as torch does and makes what is left of numbers fit.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.base.dtype import COMPLEX
from meta.frontend.aten.arguments import number
from meta.frontend.aten.promotion import as_float, cast, is_number, result_dtype
from meta.frontend.core import Unconvertible
from meta.op.core import Op
from meta.op.core.handler import current
from meta.op.core.tracing import Trace


def device_of(*operands: Any) -> str:
    """Return the device of the program, or without one that of the first array."""
    trace = current()
    if isinstance(trace, Trace):
        return str(trace.device)
    devices = (getattr(x, "device", None) for x in operands)
    return str(next((d for d in devices if d is not None), Device("cpu")))


def as_tensor(value: Any, dtype: str, device: str) -> Any:
    """Return an operand as a tensor of a dtype, a number as a 0-d one."""
    if not is_number(value):
        return cast(value, dtype)
    value = number(value, dtype, device)
    return op.full((), value, dtype, device) if is_number(value) else value


def promote_operands(
    *values: Any, floating: bool = False, dtype: str | None = None
) -> tuple[Any, ...]:
    """Return operands in the dtype that torch computes in, or in ``dtype``; numbers that fit it
    stay numbers, None stays None.

    floating: integers are computed in torch's default for floating point, as by `torch.atan2`.
    """
    found = result_dtype(*values) if dtype is None else dtype
    found = as_float(found) if floating else found
    device = device_of(*values)
    return tuple(number(x, found, device) if is_number(x) else cast(x, found) for x in values)


def require_supported(base: Op, *tensors: Any) -> None:
    """Raise Unconvertible for complex tensors that a base operator does not take."""
    found = next((x.dtype for x in tensors if getattr(x, "dtype", "") in COMPLEX), None)
    if found is not None and not base.complex:
        raise Unconvertible(f"the base operator {base.name!r} does not take {found}")


def require_real(*values: Any) -> None:
    """Raise Unconvertible for complex tensors."""
    found = next((x.dtype for x in values if getattr(x, "dtype", None) in COMPLEX), None)
    if found is not None:
        raise Unconvertible(f"it is not converted for {found}")
