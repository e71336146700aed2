"""Side effects that Python code must not have while it is traced: it runs once, and the program
many times. Arrays that cannot be read.

A number that it draws, or reads from an array of the model, would be the same in every run, and
what it writes would be written once. The floor of traces says which code is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.device import NOWHERE
from meta.base.errors import ArgumentError, TraceError

current_trace: Callable[[], Any] = lambda: None  # noqa: E731
"""Returns the trace that the running code is part of, or None; the floor of traces sets it."""


def refuse_draw() -> None:
    """Raise TraceError for random numbers that are drawn, or seeded, by traced code."""
    if current_trace() is not None:
        raise TraceError(
            "random numbers are drawn while a function is traced: they would be constants of the "
            "program, the same in every run",
            hint="meta.random.normal and the others draw anew in every run; draw keys and seed "
            "outside of the traced function",
        )


def refuse_write(
    array: Any,
    what: str = "update() is called",
    hint: str = "return the new value, and update the array outside; or write it by an in-place "
    "operator, as batch_norm_train writes its statistics",
) -> None:
    """Raise TraceError for an array that traced code writes at once; ``what`` says how."""
    if current_trace() is not None:
        raise TraceError(
            f"{what} while a function is traced: it would be done once, and not when the "
            "program runs",
            found=f"an array of shape {array.shape}",
            hint=hint,
        )


def require_values(array: Any) -> None:
    """Raise ArgumentError for an array whose values are still to be drawn or loaded."""
    if array.key.device is NOWHERE:
        raise ArgumentError(
            "this array has no values yet: its model was built within empty_init()",
            found=f"{array.name or 'an array'} of shape {array.shape}",
            hint="load the model first (meta.model.load_weights, load_state_dict), or build it "
            "without empty_init()",
        )


def refuse_read(array: Any) -> None:
    """Raise TraceError for traced code that reads the values of an array of its model, and
    ArgumentError for an array that has no values.
    """
    require_values(array)
    trace = current_trace()
    if trace is not None and trace.is_bound(array):
        raise TraceError(
            "the values of a model's array are read while it is traced: the program would go on "
            "with them when the array has changed",
            found=f"{array.name or 'an array'} of shape {array.shape}",
            hint="compute with operators; or keep what Python decides by in a plain attribute, "
            "whose change traces anew",
        )
