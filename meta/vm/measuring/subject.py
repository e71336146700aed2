"""`Subject`: what a race is about, a call of an operator or a fused function, in the terms that
measuring needs: what a kernel is given, what it makes, what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.dialect.core import FUSED, IN_PLACE
from meta.dialect.core.ir_calls import arg_types, base_op
from meta.ir import Call, Function, Module, TensorType, Tuple, TupleType, Var, type_bytes
from meta.op.core.call import CallValues, array_type, runtime_args, written_positions
from meta.op.core.schema import NUMBERS
from meta.passes.alias_analysis import AliasSummaries
from meta.vm.eager.example_calls import ExampleCall
from meta.vm.eager.launch_checks import Bounds, bounds_of


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes
    ----------
    what: a `CallValues` or a `Function`. given: of a call, its arguments as `ExampleCall` has them.
    name, title: of the operator, or of the dialect that runs the function; and with its types.
    values: what a kernel is given, as `OpEnv.run` takes it: an `ndarray` or a number, or the type
    of a tensor that is to be made. outputs: what it makes.
    written: the positions of what it writes. bounds: by position, what integers there index.
    random: whether equal arguments may give other results. bytes: of tensors, by their role.
    """

    what: CallValues | Function
    given: tuple[Any, ...]
    name: str
    title: str
    device: Device
    values: tuple[Any, ...]
    outputs: tuple[TensorType, ...]
    written: tuple[int, ...]
    bounds: tuple[tuple[int, Bounds], ...]
    random: bool
    bytes: dict[str, int]

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the results, then of what is written."""
        return (*self.outputs, *(_type(self.values[place]) for place in self.written))


def subject_of(example: ExampleCall) -> Subject:
    """Return the subject that a call of an operator is; ArgumentError unless its extents are
    numbers.
    """
    call = example.call
    op = call.op
    _require_static(list(call.tensors()), str(call))
    values = tuple(runtime_args(op, example.given))
    sizes = {"inputs": 0, "weights": 0}
    for slot, argument in zip(op.schema.slots, call.args, strict=True):
        for type_ in argument if isinstance(argument, tuple) else (argument,):
            if slot.kind != "attribute" and isinstance(type_, TensorType):
                sizes["weights" if slot.role == "weight" else "inputs"] += type_bytes(type_)
    outputs = call.outputs
    sizes["outputs"] = sum(type_bytes(t) for t in outputs if t.is_static)
    ranges = op.index_ranges(call.args)
    return Subject(
        call,
        example.given,
        op.name,
        f"{call} -> {call.out}",
        call.device,
        values,
        outputs,
        written_positions(call),
        tuple((place, bounds_of(op.name, found)) for place, found in ranges),
        op.random,
        sizes,
    )


def function_subject(function: Function, device: Device) -> Subject:
    """Return the subject that a function is which one kernel of a dialect runs."""
    types = [p.type for p in function.params]
    places = {p: i for i, p in enumerate(function.params)}
    tensors = [t for t in types if isinstance(t, TensorType)]
    result = function.result_type
    fields = result.fields if isinstance(result, TupleType) else (result,)
    outputs = tuple(f for f in fields if isinstance(f, TensorType))
    operators, bounds = [], []
    for binding in function.body.bindings:
        call = binding.value
        op = base_op(call.callee) if isinstance(call, Call) else None
        if op is None:
            continue
        assert isinstance(call, Call)
        operators.append(op)
        atoms = runtime_args(op, tuple(map(_fields, call.args)))
        for place, found in op.index_ranges(arg_types(op, call)):
            if isinstance(atoms[place], Var) and atoms[place] in places:
                bounds.append((places[atoms[place]], bounds_of(op.name, found)))
    title = f"{'+'.join(op.name for op in operators)}({', '.join(map(str, types))}) -> {result}"
    _require_static([*tensors, *outputs], title)
    attrs = {k: v for k, v in function.attrs.items() if k != IN_PLACE}
    alone = Function(function.params, function.body, result, attrs)
    written = AliasSummaries(Module({"main": alone}))["main"].written
    return Subject(
        function,
        (),
        function.attrs[FUSED],
        f"{title} on {device}",
        device,
        tuple(types),
        outputs,
        tuple(sorted(written)),
        tuple(bounds),
        any(op.random for op in operators),
        {
            "inputs": sum(map(type_bytes, tensors)),
            "weights": 0,
            "outputs": sum(map(type_bytes, outputs)),
        },
    )


def _fields(argument: Any) -> Any:
    return argument.fields if isinstance(argument, Tuple) else argument


def _require_static(types: list[TensorType], title: str) -> None:
    if not all(t.is_static for t in types):
        raise ArgumentError(
            "what is measured has extents that are numbers",
            found=title,
            hint="measure it once for each of the extents that matter",
        )


def _type(value: Any) -> TensorType:
    assert not isinstance(value, NUMBERS)
    return value if isinstance(value, TensorType) else array_type(value.key)
