"""The registry of exporters: by base operator, the ONNX form of its calls.

Where an importer's converter says that an operator of ONNX has the operands and attributes of a
base operator (`@op(names=...)`, ``onnx.same``), the form follows from it (`_derived`). Another form
is a function in the family file of `exporters/` that fits::

    @exports(op.softmax)
    def softmax(graph, x, axis):
        return graph.node("Softmax", x, axis=axis)

It is given the arguments in schema order: tensors as symbols, the others as Python values. It may
call base operators instead, which is exact arithmetic in the dtype of its arguments; ``wide=True``
says that half precision is computed in float32 and rounded once, and integers are cast to the dtype
of the result before. Where there are both, what follows from the importer is tried first, unless
the function is registered with ``instead=True``. Like a converter an exporter is written without
annotations, and raises `Unconvertible`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from meta import op as operators
from meta.base.dtype import COMPLEX, is_float
from meta.base.number import fits
from meta.base.registry import OPERATORS
from meta.dialect.core.ir_calls import leaf_types
from meta.frontend.core import Converter, Unconvertible
from meta.frontend.onnx import converters  # noqa: F401
from meta.frontend.onnx.export.graph import Graph
from meta.frontend.onnx.registry import onnx, schema_of
from meta.ir import TensorType
from meta.op.core import Op
from meta.op.core.call import map_tensors
from meta.op.core.names import named_in
from meta.op.core.slot import NUMBERS
from meta.op.core.tracing import Symbol


@dataclass(frozen=True)
class Exporter:
    """What writes calls of a base operator; ``wide`` and ``instead`` as above."""

    function: Callable[..., Any]
    wide: bool = False
    instead: bool = False

    def __call__(self, graph: Graph, op: Op, args: tuple[Any, ...]) -> Any:
        """Write a call, of which a number that could be a tensor becomes one."""
        result, wanted = graph.result, None
        if self.wide and isinstance(result, TensorType) and is_float(result.dtype):
            wanted = "float32" if result.dtype in ("float16", "bfloat16") else result.dtype
            graph.result = result.with_dtype(wanted)
        found = self.function(graph, *with_numbers(graph, op, args, wanted))
        return found if wanted is None else cast(found, result.dtype)


EXPORTERS: dict[Op, Exporter] = {}


def exports(
    *ops: Op, wide: bool = False, instead: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what writes calls of base operators: a decorator."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        EXPORTERS.update({one: Exporter(function, wide, instead) for one in ops})
        return function

    return register


def forms(wide: bool = False, instead: bool = False, **written: Callable[..., Any]) -> None:
    """Register what writes calls of base operators, by their names."""
    for name, form in written.items():
        exports(OPERATORS[name], wide=wide, instead=instead)(form)


def with_numbers(graph: Graph, op: Op, args: tuple[Any, ...], wide: str | None) -> list[Any]:
    """Return arguments whose numbers that could be tensors are such, of the dtype that they take,
    or ``wide``. One of any size is compared with tensors in a dtype that has both.
    """
    known = op.schema.number_dtypes(map_tensors(op, args, lambda s: s.type), graph.result)
    either = [i for i, slot in enumerate(op.slots) if slot.kind == "scalar or tensor"]
    free = [args[i] for i in either if isinstance(args[i], NUMBERS) and i not in known]
    given = list(args)
    for i, value in enumerate(args):
        if wide and isinstance(value, Symbol) and (i in either or is_float(value.dtype)):
            given[i] = cast(value, wide)
    own = next((str(a.dtype) for a in given if isinstance(a, Symbol)), "float32")
    if not all(fits(n, own) for n in free):
        own = "float64" if any(isinstance(n, float) for n in free) else "int64"
        for i in either:
            given[i] = cast(given[i], own) if isinstance(given[i], Symbol) else given[i]
    for i in either:
        if isinstance(given[i], NUMBERS):
            given[i] = graph.constant(given[i], wide or known.get(i, own))
    return given


def cast(x: Any, dtype: str) -> Any:
    """Return a value in a dtype; itself if it has it."""
    return x if x.dtype == dtype else operators.astype(x, dtype)


@cache
def derived() -> Mapping[Op, Converter]:
    """Return by base operator what the importer says: the converter of ONNX's operator."""
    found = {
        c.function: c for c in onnx.values() if isinstance(c.function, Op) and "." not in c.name
    }
    for name, base in named_in("onnx").items():
        if schema_of(name, 99) is not None:
            found.setdefault(base, onnx[name])
    return found


def export_call(graph: Graph, op: Op, args: tuple[Any, ...]) -> Any:
    """Write a call of a base operator; return its results. Unconvertible says why not."""
    why = None
    flat = (x for a in args for x in (a if isinstance(a, tuple) else (a,)))
    dtypes = {x.dtype for x in flat if isinstance(x, Symbol)}
    if COMPLEX & {*dtypes, *(getattr(t, "dtype", "") for t in leaf_types(graph.result))}:
        raise Unconvertible("ONNX has no arithmetic of complex numbers",
                            "keep real and imaginary parts in arrays of their own")  # fmt: skip
    own = EXPORTERS.get(op)
    if op in derived() and not (own is not None and own.instead):
        nodes = len(graph.nodes)
        try:
            return _derived(graph, op, args)
        except Unconvertible as error:
            del graph.nodes[nodes:]
            why = error
    if own is not None:
        return own(graph, op, args)
    raise why or no_counterpart(op)


def no_counterpart(op: Op) -> Unconvertible:
    """Return the refusal of an operator that has no exporter."""
    why, hint = "ONNX has no such operator", "leave this part to what calls the model"
    if op.collective:
        why, hint = "ONNX has one process", "write the model of one rank, unsharded"
    elif op.has_effect:
        why, hint = "it writes to an argument, and ONNX only makes values", "model.eval()"
    elif op.random:
        why, hint = "it draws random numbers", "model.eval(), which drops nothing"
    elif op.name.endswith("_dx") or any(op.name.startswith(f"{n}_d") for n in OPERATORS):
        why, hint = "it is the gradient of an operator", "write the model, not its training step"
    return Unconvertible(why, hint)


def _derived(graph: Graph, op: Op, args: tuple[Any, ...]) -> Any:
    """Write a call as the operator of ONNX of which it is the converter."""
    converter = derived()[op]
    schema = schema_of(converter.name, graph.opset)
    names = {} if converter.function is not op else converter.attributes
    there = {here: name for name, here in names.items() if name in schema.attributes}
    values, attributes = list[Any](), dict[str, Any]()
    for slot, value in zip(op.slots, with_numbers(graph, op, args, None), strict=True):
        default = converter.otherwise.get(slot.name, slot.default)
        if slot.name in there:
            if value is None:
                raise Unconvertible(f"ONNX's {converter.name} needs {slot.name}")
            is_float32 = schema.attributes[there[slot.name]].type == schema.AttrType.FLOAT
            attributes[there[slot.name]] = float(value) if is_float32 else value
        elif isinstance(value, Symbol):
            values.append(value)
        elif value != default:
            raise Unconvertible(f"ONNX's {converter.name} has no {slot.name}={value!r}")
    if not schema.min_input <= len(values) <= schema.max_input:
        raise Unconvertible(f"ONNX's {converter.name} takes other tensors")
    word, result = schema.outputs[0].type_str, graph.result
    if getattr(result, "dtype", "") == "float64" and (
        (schema.has_function and op in EXPORTERS)
        or any(isinstance(a, float) for a in attributes.values())
    ):
        raise Unconvertible(f"ONNX's {converter.name} has numbers of 32 bits")
    if isinstance(result, TensorType):
        for i, value in enumerate(values):
            if schema.inputs[min(i, len(schema.inputs) - 1)].type_str == word:
                values[i] = cast(value, result.dtype)
    return graph.node(converter.name, *values, **attributes)
