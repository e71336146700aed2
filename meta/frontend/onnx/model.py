"""`from_onnx`: an ONNX model becomes a model; and `Program`: an ONNX model taken apart into graph,
functions, constants and weights.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    external_data_helper,
    numpy_helper,
)
from onnx import helper as onnx_helper

from meta.base.device import CPU
from meta.base.errors import ArgumentError, FormatError
from meta.base.files import require_file
from meta.base.registry import nearest
from meta.frontend.core import Failure, ImportedModel, Unconvertible, active_trace, conversion_error
from meta.frontend.onnx.registry import (
    OnnxError,
    attribute_value,
    defaults_of,
    full_name,
    schema_of,
)
from meta.frontend.onnx.registry import onnx as converters
from meta.frontend.onnx.text import as_lists
from meta.frontend.onnx.values import (
    CARRIER_DTYPES,
    NarrowValue,
    Text,
    array_of,
    as_declared,
    carrier,
    dtype_of,
    name_of,
)
from meta.frontend.onnx.walker import MAX_DEPTH, FunctionKey, Walker, node_name, opset_of
from meta.op.core.tracing import Symbol
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
        if converters.get(name) is None and _is_defined_by_others(name, opset):
            continue
        stated = {a.name: _checked_value(a) for a in node.attribute if not a.ref_attr_name}
        try:
            converters.require(name, {**defaults_of(name, opset), **stated})
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


MAX_MODEL_BYTES = 2 << 30
"""What protobuf takes; larger models keep their tensors in other files."""


class OnnxModel(ImportedModel):
    """A model imported from ONNX: takes the graph's inputs, returns its output or outputs.

    Attributes
    ----------
    output_names: the names of the outputs, in order.
    """

    def build(  # type: ignore[override]  # a constructor
        self, program: Program, arrays: Mapping[str, ndarray], input_names: Sequence[str]
    ) -> None:
        """Take a checked program and its state by name."""
        super().build(arrays, input_names)
        self._program = program
        self.output_names = tuple(o.name for o in program.graph.output)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxModel:
        """Return a model with arrays of its own, of the same program, which is never written to."""
        memo[id(self._program)] = self._program
        return cast(OnnxModel, super().__deepcopy__(memo))

    def convert(self, *inputs: Any) -> Any:
        """Call the operators of the graph under the trace in force."""
        trace, program = active_trace(), self._program
        values: dict[str, Any] = {n: trace.lift(a) for n, a in self.arrays.items()}
        values |= {n: a.to(device=trace.device) for n, a in program.constants.items()}
        for declared, value in zip(program.inputs, inputs, strict=True):
            _require_declared_type(declared, value)
            values[declared.name] = as_declared(declared.type, value)
        walker = Walker(program.functions, self.training)
        results = as_lists(carrier(walker.main(program.graph, program.opsets, values)))
        return results if len(results) > 1 else results[0]


def _require_declared_type(declared: ValueInfoProto, value: Any) -> None:
    """Raise OnnxError for an input of another type than the graph declares."""
    if not declared.type.HasField("tensor_type") or not isinstance(value, Symbol | ndarray):
        return
    tensor = declared.type.tensor_type
    try:
        name = name_of(tensor.elem_type)
        dtype = CARRIER_DTYPES[name] if name in CARRIER_DTYPES else dtype_of(tensor.elem_type)
    except Unconvertible as error:
        raise OnnxError(f"the input {declared.name!r}: {error.why}", hint=error.hint) from None
    # PaddlePaddle states -1 for an extent that it does not know.
    extents = [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in tensor.shape.dim
    ]
    fits = not tensor.HasField("shape") or (
        len(extents) == value.ndim
        and all(
            a is None or not isinstance(b, int) or a == b
            for a, b in zip(extents, value.shape, strict=True)
        )
    )
    if dtype != value.dtype or not fits:
        names = [
            d.dim_param or ("?" if known is None else known)
            for d, known in zip(tensor.shape.dim, extents, strict=True)
        ]
        raise OnnxError(
            f"the input {declared.name!r} has another type",
            expected=f"{dtype}[{', '.join(map(str, names))}]",
            found=f"{value.dtype}[{', '.join(map(str, value.shape))}]",
        )


def from_onnx(model: Any, constants: Mapping[str, object] | None = None) -> OnnxModel:
    """Convert an ONNX model to a model.

    model: the path of a file, or an `onnx.ModelProto`.
    constants: values for some of the graph's inputs, which are no inputs then. An input that says
        axes or the like must be one, where its value has to be known.

    The model takes the graph's inputs, by position or by name, and returns its output, or a tuple
    of them. Initializers of floating point are its parameters by their names, except the running
    statistics of batch normalisation; those that say shapes and the like are constants. It is in
    infer mode; in train mode batch normalisation takes the statistics of the batch and updates the
    running ones, and dropout drops.

    Raises OnnxError for a file that is no valid ONNX model, and, listing all of them, for nodes
    that no converter takes; those that a converter cannot express are listed when the model is
    called. ArgumentError for constants that are no inputs.

    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "xy")
    >>> graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "graph", [x], [y])
    >>> model = meta.frontend.from_onnx(helper.make_model(graph))
    >>> model(meta.ones((1, 2))).tolist()
    [[-1.0, -1.0]]
    """
    program, arrays = read_program(_load_checked(model), dict(constants or {}))
    return OnnxModel(program, arrays, [i.name for i in program.inputs])


def _load_checked(model: Any) -> onnx.ModelProto:
    """Return a checked model."""
    if not isinstance(model, onnx.ModelProto | str | os.PathLike):
        raise ArgumentError(
            "from_onnx takes a file or a model",
            expected="a path or onnx.ModelProto",
            found=type(model).__name__,
        )
    if isinstance(model, onnx.ModelProto):
        proto, place = model, "the model"
    else:
        place = os.fspath(model)
        try:
            require_file(place, MAX_MODEL_BYTES)
            proto = onnx.load(place, load_external_data=False)
            _load_external(proto, os.path.dirname(place))
        except FormatError:
            raise
        except OSError as error:
            raise OnnxError(f"{place} cannot be read: {error}") from error
        except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
            raise OnnxError(f"{place} is no ONNX model: {_text(error)}") from error
    try:
        onnx.checker.check_model(_for_checker(proto))
    except onnx.checker.ValidationError as error:
        raise OnnxError(f"{place} is no valid ONNX model: {_text(error)}") from error
    return proto


def _for_checker(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as the checker wants it: what it demands and nobody needs is put in.

    Until version 3 of the format the inputs had to name the initializers too, and versions before
    had no opsets. Inputs and outputs of the graph have to have shapes, and outputs types, which not
    all writers know.
    """
    old = proto.ir_version < 4
    untyped = [o for o in proto.graph.output if not o.HasField("type")]
    values = (*proto.graph.input, *proto.graph.output)
    if not old and not untyped and all(map(_has_shape, values)):
        return proto
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    if old:
        shown.ir_version = 4
        if not shown.opset_import:
            shown.opset_import.add(version=1)
    for output in shown.graph.output:
        if not output.HasField("type"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in (*shown.graph.input, *shown.graph.output):
        if not _has_shape(value):
            value.type.tensor_type.shape.SetInParent()
    return shown


def _has_shape(value: ValueInfoProto) -> bool:
    """Whether a value is no tensor, or states its shape."""
    is_tensor = value.type.WhichOneof("value") == "tensor_type"
    return not is_tensor or bool(value.type.tensor_type.HasField("shape"))


def _load_external(proto: onnx.ModelProto, folder: str) -> None:
    """Read the tensors that a model keeps in files of their own, all of them ordinary files."""
    tensors = external_data_helper._get_all_tensors(proto)
    for tensor in filter(external_data_helper.uses_external_data, tensors):
        location = external_data_helper.ExternalDataInfo(tensor).location
        with contextlib.suppress(FileNotFoundError):  # onnx says of which tensor it is
            require_file(os.path.join(folder, location))
    onnx.load_external_data_for_model(proto, folder)


def _text(error: Exception) -> str:
    """Return the last line of an error's text, which with onnx's is the message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
