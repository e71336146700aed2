"""`Program`: an ONNX model taken apart into graph, functions, constants and weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)
from onnx import helper as onnx_helper

from meta.base.device import CPU
from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.frontend.core import Failure, Unconvertible, conversion_error
from meta.frontend.onnx.registry import (
    OnnxError,
    attribute_value,
    defaults_of,
    full_name,
    onnx,
    schema_of,
)
from meta.frontend.onnx.values import NarrowValue, Text, array_of
from meta.frontend.onnx.walker import MAX_DEPTH, FunctionKey, node_name, opset_of
from meta.runtime.ndarray import ndarray

MAX_NODES = 1 << 20
"""Nodes that a model may have when its functions are expanded."""
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
STATISTICS = {"BatchNormalization": (3, 4)}
"""Inputs that are running statistics, which no gradient trains."""
NUMBERS = {
    "Clip": (1, 2),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "QuantizeLinear": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Tile": (1, 2),
    "TopK": (1,),
    "Upsample": (1,),
}
"""Inputs of floating point that are no weights."""


@dataclass(frozen=True)
class Program:
    """A model's code.

    Attributes
    ----------
    graph: the graph; its initializers are in ``constants`` or the model's state. inputs: its inputs
    that are neither. opsets: versions by domain. functions: those of the model. constants: by name.
    statistics: names of initializers that are running statistics.
    """

    graph: GraphProto
    inputs: tuple[ValueInfoProto, ...]
    opsets: Mapping[str, int]
    functions: Mapping[FunctionKey, FunctionProto]
    constants: Mapping[str, ndarray | NarrowValue | Text]
    statistics: frozenset[str] = field(default_factory=frozenset)


def read_program(
    model: ModelProto, given: Mapping[str, object]
) -> tuple[Program, dict[str, ndarray]]:
    """Return a model's program and its weights by name; ``given`` are values for inputs.

    Raises OnnxError that lists every node that no converter takes, and ArgumentError for values of
    what is no input.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    require_bounded(model.graph, functions)
    graph = GraphProto()
    graph.CopyFrom(model.graph)
    del graph.initializer[:], graph.sparse_initializer[:]
    nodes = list(all_nodes(graph.node))
    numbers, statistics = _inputs_at(nodes, NUMBERS), _inputs_at(nodes, STATISTICS)
    weights: dict[str, ndarray] = {}
    constants = _constant_inputs(model, given)
    for tensor in (*model.graph.initializer, *model.graph.sparse_initializer):
        dense = isinstance(tensor, TensorProto)
        name = tensor.name if dense else tensor.values.name
        if name in constants:
            continue
        try:
            value = array_of(tensor, CPU)
        except Unconvertible as error:
            raise OnnxError(f"the initializer {name!r}: {error.why}", hint=error.hint) from None
        is_weight = dense and tensor.data_type in FLOATS and tensor.dims and name not in numbers
        if is_weight and isinstance(value, ndarray):
            weights[name] = value
            value.requires_grad = name not in statistics
        else:
            constants[name] = value
    inputs = tuple(i for i in graph.input if i.name not in weights and i.name not in constants)
    _require_no_text(inputs)
    opsets = {o.domain: o.version for o in model.opset_import}
    program = Program(graph, inputs, opsets, functions, constants, frozenset(statistics))
    failures = unsupported(program)
    if failures:
        raise conversion_error(failures, OnnxError)
    return program, weights


def _require_no_text(inputs: Iterable[ValueInfoProto]) -> None:
    """Raise OnnxError if an input is text."""
    for value in inputs:
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            raise OnnxError(
                f"the input {value.name!r} is text, of which there are no arrays",
                hint="cut the part of the model off that works with text",
            )


def _inputs_at(nodes: Iterable[NodeProto], places: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Return the names of values that are inputs at such places of operators."""
    return {
        node.input[i]
        for node in nodes
        for i in places.get(node.op_type, ())
        if i < len(node.input) and node.input[i]
    }


def _constant_inputs(
    model: ModelProto, given: Mapping[str, object]
) -> dict[str, ndarray | NarrowValue | Text]:
    """Return the values of inputs that are constants."""
    inputs = {i.name: i for i in model.graph.input}
    constants: dict[str, ndarray | NarrowValue | Text] = {}
    for name, value in given.items():
        if name not in inputs:
            raise ArgumentError(f"the model has no input {name!r}", hint=nearest(name, inputs))
        if not inputs[name].type.HasField("tensor_type"):
            raise ArgumentError(f"the input {name!r} is no array, and so cannot be a constant")
        kind = inputs[name].type.tensor_type.elem_type
        dtype = onnx_helper.tensor_dtype_to_np_dtype(kind)
        values = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        if not np.can_cast(values.dtype, dtype, "same_kind"):
            raise ArgumentError(
                f"the constant for {name!r} is of another dtype", expected=dtype, found=values.dtype
            )
        if values.dtype.kind in "iu" and not np.array_equal(values.astype(dtype), values):
            raise ArgumentError(f"the constant for {name!r} is beyond {dtype}", found=values)
        try:
            constants[name] = array_of(numpy_helper.from_array(values.astype(dtype)), CPU)
        except Unconvertible as error:
            raise ArgumentError(f"the constant for {name!r}: {error.why}") from None
    return constants


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those of the graphs in them, such as the branches of `If`."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_nodes(inner.node)


def unsupported(program: Program) -> list[Failure]:
    """Return a failure for each node that no converter takes, in the graph and in the functions of
    the model.
    """
    failures = _unsupported(program.graph.node, program.opsets, program)
    for function in program.functions.values():
        opsets = {o.domain: o.version for o in function.opset_import}
        failures += _unsupported(function.node, opsets or program.opsets, program)
    return failures


def _unsupported(
    nodes: Iterable[NodeProto], opsets: Mapping[str, int], program: Program
) -> list[Failure]:
    failures = []
    for node in all_nodes(nodes):
        if (node.domain, node.op_type, node.overload) in program.functions:
            continue
        name, opset = full_name(node.domain, node.op_type), opset_of(opsets, node.domain)
        if onnx.get(name) is None and _is_defined_by_others(name, opset):
            continue
        stated = {a.name: _checked_value(a) for a in node.attribute if not a.ref_attr_name}
        try:
            onnx.require(name, {**defaults_of(name, opset), **stated})
        except Unconvertible as error:
            failures.append(Failure(name, error.why, error.hint, node_name(node)))
    return failures


def _checked_value(attribute: Any) -> Any:
    value = attribute_value(attribute)
    return "a graph" if isinstance(value, GraphProto) else value


def _is_defined_by_others(name: str, opset: int) -> bool:
    schema = schema_of(name, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def require_bounded(graph: GraphProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Raise OnnxError for a model whose functions, expanded, are too many nodes or have no end."""
    sizes: dict[FunctionKey, int] = {}
    under_way: list[FunctionKey] = []

    def of_function(key: FunctionKey) -> int:
        if key in sizes:
            return sizes[key]
        if key in under_way or len(under_way) >= MAX_DEPTH:
            raise OnnxError(
                f"the function {key[1]!r} of the model calls itself, or is too deep in others",
                expected=f"at most {MAX_DEPTH} functions in one another",
            )
        under_way.append(key)
        sizes[key] = of_nodes(functions[key].node)
        under_way.pop()
        return sizes[key]

    def of_nodes(nodes: Iterable[NodeProto]) -> int:
        total = 0
        for node in all_nodes(nodes):
            key = (node.domain, node.op_type, node.overload)
            total += of_function(key) if key in functions else 1
        return total

    found = of_nodes(graph.node)
    if found > MAX_NODES:
        raise OnnxError(
            "the functions of the model, each written out where it is called, are too many nodes",
            expected=f"at most {MAX_NODES:,}",
            found=f"{found:,}" if found < 10**18 else "more than 10**18",
        )
