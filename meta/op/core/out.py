"""``meta.add(x, y, out=z)``: the result of a call is written into an array that there is.

Every operator takes it whose result is one array. As with torch, nothing is promoted or broadcast
on the way to ``out``, and no gradient passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.errors import ArgumentError, GradientError, TraceError
from meta.runtime import trace_checks
from meta.runtime.inplace_writes import writable_buffer
from meta.runtime.ndarray import ndarray
from meta.runtime.no_gradient import is_recording


def write_out(name: str, out: Any, call: Callable[[], Any]) -> Any:
    """Write the result of a call of an operator into ``out`` and return it; None: return the
    result.

    Raises ArgumentError for what is no array, or has another shape, dtype or device than the
    result; GradientError where the call would be recorded, or ``out`` requires a gradient; and
    TraceError in code that is traced.
    """
    if out is None:
        return call()
    hint = f"z = meta.{name}(...), which is a new array"
    if trace_checks.current_trace() is not None:
        raise TraceError(
            f"{name}(out=) writes to an array while a function is traced: a program has no such "
            "writes",
            found=f"out of shape {out.shape}",
            hint=hint,
        )
    if not isinstance(out, ndarray):
        raise ArgumentError(
            "out must be an array of meta",
            op=name,
            found=type(out).__name__,
            hint="meta.from_dlpack(t) shares the memory of arrays of other libraries",
        )
    memory = writable_buffer(out, f"{name}(out=)", hint)
    result = call()
    if not isinstance(result, ndarray):
        raise ArgumentError(
            "out= is for operators whose result is one array",
            op=name,
            found=type(result).__name__,
        )
    if result.requires_grad and is_recording():
        raise GradientError(
            "a call with out= is not recorded, and an argument requires a gradient",
            op=name,
            hint=f"{hint}; or with meta.no_grad(): where no gradient is needed",
        )
    if (result.shape, result.dtype, result.device) != (out.shape, out.dtype, out.device):
        raise ArgumentError(
            "out has another type than the result",
            op=name,
            expected=f"shape {result.shape}, dtype {result.dtype}, on {result.device}",
            found=f"shape {out.shape}, dtype {out.dtype}, on {out.device}",
        )
    memory.copy_(result.tensor.detach())
    return out
