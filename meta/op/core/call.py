"""`CallValues`: one call of an operator as its declare and the dialects see it, without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meta.base.device import Device
from meta.base.number import integer_range
from meta.ir.types import TensorType, TupleType, Type
from meta.runtime.array_key import ArrayKey

if TYPE_CHECKING:
    from meta.op.core.op import Op


@dataclass(frozen=True, slots=True)
class View:
    """A result that is the buffer of the argument in ``slot``, seen with the shape of ``type``.

    shard: None, or an axis of the mesh and its number of ranks: of as many equal flat parts of that
    buffer the result is then this rank's.
    """

    slot: int
    type: TensorType
    shard: tuple[str, int] | None = None


class CallValues:
    """What a call is before it runs.

    Attributes
    ----------
    op: the base operator.
    args: its canonical arguments by slot name; a tensor is a `TensorType`, several are a tuple of
    them.
    device: where it is to run, and where its tensors are.
    out_device: where its results are: the same, unless `declare` says otherwise.
    out: what `declare` decided: a `TensorType` or `TupleType` to allocate, a `View`, or a plain
    value known now.
    callee: the operator that is still to be executed, None if ``out`` is final.
    """

    __slots__ = ("args", "callee", "device", "op", "out", "out_device")

    def __init__(self, op: Op, args: tuple[Any, ...], device: Device) -> None:
        self.op = op
        self.args = op.schema.Args(*args)
        self.device = self.out_device = device
        self.callee: Op | None = op
        self.out: Any = None

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """Types of the tensors that a kernel of this call produces."""
        if isinstance(self.out, TupleType):
            return tuple(f for f in self.out.fields if isinstance(f, TensorType))
        return (self.out.type if isinstance(self.out, View) else self.out,)

    def tensors(self) -> Iterator[TensorType]:
        """Iterate over the tensor arguments, tuples flattened, None left out."""
        yield from (a for a in runtime_args(self.op, self.args) if isinstance(a, TensorType))

    def __str__(self) -> str:
        return f"{call_text(self.op, self.args)} on {self.device}"


def call_text(op: Op, args: tuple[Any, ...]) -> str:
    """Return a call with canonical arguments as text: ``relu(x=float32[2])``."""

    def shown(value: Any) -> Any:
        several = isinstance(value, tuple) and value != ()
        return TupleType(value) if several and isinstance(value[0], TensorType) else value

    parts = [f"{n}={shown(a)}" for n, a in zip(op.schema.names, args, strict=True)]
    return f"{op.name}({', '.join(parts)})"


def runtime_args(op: Op, args: tuple[Any, ...], slots: int | None = None) -> list[Any]:
    """Return what a kernel receives: tensors and run-time numbers in slot order, tuples flattened,
    None left out; only those of the first ``slots``, if a number is given.
    """
    values: list[Any] = []
    for slot, value in zip(op.schema.slots[:slots], args[:slots], strict=True):
        if slot.kind == "attribute" or value is None:
            continue
        if slot.kind == "tensors":
            values.extend(value)
        else:
            values.append(value)
    return values


def map_tensors(op: Op, args: tuple[Any, ...], function: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Apply ``function`` to every tensor argument, keeping numbers, None and attributes."""
    result = []
    for slot, value in zip(op.schema.slots, args, strict=True):
        if slot.kind == "attribute" or value is None or isinstance(value, bool | int | float):
            result.append(value)
        elif slot.kind == "tensors":
            result.append(tuple(function(v) for v in value))
        else:
            result.append(function(value))
    return tuple(result)


def _argument_positions(op: Op, args: tuple[Any, ...]) -> Iterator[tuple[int, range]]:
    """Iterate over the slots that `runtime_args` has, with the positions of each among them."""
    count = 0
    for i, (slot, value) in enumerate(zip(op.schema.slots, args, strict=True)):
        if slot.kind != "attribute" and value is not None:
            width = len(value) if slot.kind == "tensors" else 1
            yield i, range(count, count + width)
            count += width


def argument_names(op: Op, args: tuple[Any, ...]) -> list[str]:
    """Return the name of each of `runtime_args`: ``x``, or ``xs[0]`` of several tensors."""
    names, kinds = op.schema.names, op.schema.kinds
    return [
        f"{names[i]}[{p - places.start}]" if kinds[i] == "tensors" else names[i]
        for i, places in _argument_positions(op, args)
        for p in places
    ]


def slot_positions(call: CallValues) -> dict[str, int | slice]:
    """Return by slot where `runtime_args` has it: a position, or a slice of several tensors."""
    return {
        call.op.schema.names[i]: slice(at.start, at.stop)
        if call.op.schema.kinds[i] == "tensors"
        else at.start
        for i, at in _argument_positions(call.op, call.args)
    }


def written_positions(call: CallValues) -> tuple[int, ...]:
    """Return the positions, among `runtime_args`, of the arguments that the operator writes."""
    return tuple(
        p
        for i, places in _argument_positions(call.op, call.args)
        if i in call.op.schema.written
        for p in places
    )


def number_positions(call: CallValues) -> list[tuple[int, str]]:
    """Return, of the Python numbers that take a dtype, the position in `runtime_args` and which."""
    dtypes = call.op.schema.number_dtypes(call.args, call.out)
    return [
        (places.start, dtypes[i])
        for i, places in _argument_positions(call.op, call.args)
        if i in dtypes
    ]


def number_bounds(call: CallValues) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield, of each number that takes an integer dtype, its position in `runtime_args`, the range,
    and a number in it that is refused.
    """
    further = call.op.number_ranges(call.args)
    for place, dtype in number_positions(call):
        held = integer_range(dtype)
        if held is None:
            continue
        found = further.get(place)
        low = held[0] if found is None or found.any_below else max(held[0], 0)
        yield place, low, held[1], 0 if found is not None and found.nonzero else None


def written_args(op: Op, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that are written, in slot order, tuples flattened, None left out."""
    values: list[Any] = []
    for i in op.schema.written:
        value = args[i]
        if isinstance(value, tuple):
            values.extend(value)
        elif value is not None:
            values.append(value)
    return tuple(values)


def array_type(key: ArrayKey) -> TensorType:
    """Return the `TensorType` of arrays with this key, on which it is kept."""
    if key.type is None:
        key.type = TensorType(key.shape, key.dtype)
    found: TensorType = key.type
    return found


def result_types(type_: Type) -> tuple[Type, ...]:
    """Return the result types as a tuple, whether there is one or several."""
    return type_.fields if isinstance(type_, TupleType) else (type_,)


def cache_key(argument: Any) -> Any:
    """Return what distinguishes an argument: 1, 1.0 and True differ, and so do -0.0 and 0.0."""
    if isinstance(argument, TensorType) or argument is None:
        return argument
    if isinstance(argument, tuple):
        return tuple(cache_key(a) for a in argument)
    if isinstance(argument, float):
        return argument.hex()
    return (argument.__class__, argument)
