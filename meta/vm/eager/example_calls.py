"""Calls that are looked at rather than run: which operator calls the arguments of a user's call
mean, where a `TensorType` may stand for an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from meta.base.device import CPU, Device, require
from meta.base.errors import ArgumentError, DeviceError
from meta.dialect.core.ir_calls import base_op, declared_call
from meta.ir import Call, Expr, Tuple, Var, type_of
from meta.ir.types import TensorType, TupleType
from meta.op.core import CallValues, Op, map_tensors, runtime_args, tree
from meta.op.core.call import array_type
from meta.op.core.op import ComposedOp
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import as_array, ndarray
from meta.vm.eager.call import device_of


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """One operator call, and what it is given: its canonical arguments, an `ndarray` where the
    caller gave one, else a `TensorType`.
    """

    call: CallValues
    given: tuple[Any, ...]


def example_calls(
    doing: str,
    op: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: Device | None = None,
) -> list[ExampleCall]:
    """Return the operator calls that ``op(*args, **kwargs)`` makes: one for an operator, by its
    schema; several for a function, and for an operator whose call takes more than its schema.

    doing: who asks, for errors. device: where the calls run; None: where the arrays are, and
    without any on the CPU.

    Raises what the call itself would raise for wrong arguments, ArgumentError if ``op`` cannot be
    called, DeviceError for an array on another device, and TraceError for a function that needs
    the values of its arguments.
    """
    if not callable(op):
        raise ArgumentError(
            f"{doing} needs an operator, or a function of arrays",
            expected=f"what is called, and the arguments of the call: {doing}(meta.softmax, x)",
            found=type(op).__name__,
        )
    by_schema = False
    if isinstance(op, MethodType) and isinstance(op.__self__, ComposedOp):
        by_schema, op = op.__func__ is ComposedOp.plain, op.__self__
    if not isinstance(op, Op) or (isinstance(op, ComposedOp) and not by_schema):
        return list(_composed(op, args, dict(kwargs), device))
    bound = op.schema.bind(args, dict(kwargs), _lift)
    arrays = [v for v in runtime_args(op, bound) if isinstance(v, ndarray)]
    where = _common_device(arrays, device) or device_of(op, bound, arrays)
    return [ExampleCall(op.call_values(map_tensors(op, bound, _type), where), bound)]


def _composed(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: Device | None,
) -> Iterator[ExampleCall]:
    """Run a function on symbols, and iterate over the operator calls that it makes."""
    leaves, structure = tree.flatten((args, kwargs))
    lifted = [_lift(leaf) for leaf in leaves]
    arrays = [a for a in lifted if isinstance(a, ndarray)]
    places = {a.device for a in arrays}
    where = _common_device(arrays, device) or (places.pop() if len(places) == 1 else CPU)
    trace = Trace(where)
    trace.promotes = True
    parameters = [trace.parameter(_type(a), "x") for a in lifted]
    known: dict[Var, Any] = {var: a for (var, _), a in zip(parameters, lifted, strict=True)}
    args, kwargs = tree.unflatten(structure, [symbol for _, symbol in parameters])
    trace.run(lambda: function(*args, **kwargs))
    for binding in trace.finish(()).bindings:
        call = binding.value
        if isinstance(call, Call) and (base := base_op(call.callee)) is not None:
            given = tuple(_example_argument(a, known) for a in call.args)
            yield ExampleCall(declared_call(base, call, trace.device), given)


def _example_argument(argument: Any, known: Mapping[Var, Any]) -> Any:
    """Return an argument of a traced call as the caller gave it, or as its type."""
    if isinstance(argument, Tuple):
        return tuple(_example_argument(field, known) for field in argument.fields)
    if isinstance(argument, Var) and argument in known:
        return known[argument]
    if not isinstance(argument, Expr):
        return argument
    type_ = type_of(argument)
    return type_.fields if isinstance(type_, TupleType) else type_


def _common_device(arrays: list[ndarray], device: Device | None) -> Device | None:
    """Return the device that was asked for, if any; all arrays have to be there."""
    if device is None:
        return None
    where = require(device)
    for array in arrays:
        if array.device != where:
            raise DeviceError(
                "an argument is on another device",
                expected=where,
                found=f"an array of shape {array.shape} on {array.device}",
                hint="move it with .to(device=...)",
            )
    return where


def _lift(value: Any) -> Any:
    return value if isinstance(value, TensorType) else as_array(value)


def _type(value: ndarray | TensorType) -> TensorType:
    return value if isinstance(value, TensorType) else array_type(value.key)
