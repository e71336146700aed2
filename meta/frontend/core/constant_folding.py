"""What is constant while a program is converted.

What is computed of small constants alone is computed at once: shapes, axes and the like are numbers
to the converters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.call_context import use
from meta.base.device import Device
from meta.base.errors import MetaError
from meta.dialect.core.ir_calls import called_op
from meta.dialect.core.preference import prefer
from meta.frontend.core.converter import Unconvertible
from meta.ir import TensorType
from meta.op.core.tracing import Trace, Value
from meta.runtime.ndarray import ndarray


def constant_value(value: Any) -> ndarray | None:
    """Return the array of a constant, or what was computed of small ones alone, else None."""
    return value if isinstance(value, ndarray) else None


def leaves(value: Any) -> list[Any]:
    """Return what a value consists of, tuples and lists taken apart."""
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def fold_constants(
    convert: Callable[[], Any],
    arguments: Any,
    device: Device,
    most: int,
    arrays: Callable[[Any], list[Any]] = leaves,
) -> Any:
    """Return the result of a converter, which is an array if it follows from small ones alone.

    convert: calls the converter, under the trace in force or, for arrays, at once by the reference
    dialect: so no kernel is compiled. arguments: what it is given. device: where the program runs.
    most: elements of each argument, and of all results together. arrays: returns the arrays and
    symbols in arguments or results, and other values that are as good as constants.
    """
    if all(_is_small(v, most) for v in arrays(arguments)) and _follows(
        convert, device, most, arrays
    ):
        with use(None), prefer("torch"):
            return convert()
    return convert()


def _is_small(value: Any, most: int) -> bool:
    if isinstance(value, ndarray):
        return value.size <= most
    return value is None or isinstance(value, bool | int | float | str)


def _follows(
    convert: Callable[[], Any], device: Device, most: int, arrays: Callable[[Any], list[Any]]
) -> bool:
    """Whether a result is small, and depends on nothing but the arguments."""
    scratch = Trace(device)
    try:
        result = scratch.run(convert)
    except (MetaError, Unconvertible):
        return True  # it looks at what it computed on the way, or says what is wrong
    bound = [called_op(b.value) for b in scratch.builder.bindings]
    if scratch.functions or any(op is not None and (op.random or op.has_effect) for op in bound):
        return False
    types = [v.type for v in arrays(result) if isinstance(v, Value)]
    if not all(isinstance(t, TensorType) and t.is_static for t in types):
        return False
    return sum(t.size for t in types if isinstance(t, TensorType)) <= most
