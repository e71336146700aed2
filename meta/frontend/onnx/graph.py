"""Prepares an ONNX graph for TVM's importer, which needs to know more than a graph says.

In this order: inputs that are given become constants; functions of the model are inlined, and those
operators that the importer does not know but ONNX defines by others; what follows from constants
and known extents alone is computed; what the importer would read wrongly is refused; initializers
that are no weights become constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.inliner import inline_local_functions, inline_selected_functions
from tvm.relax.frontend.onnx import onnx_frontend

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.frontend.onnx.folding import folded
from meta.frontend.onnx.misread import correct_momentum, refuse_misread
from meta.frontend.relax.errors import RelaxError

MAX_NODES = 1 << 20
"""Nodes that a model may have then."""
MAX_DEPTH = 100
"""How deep functions may be in functions."""

Key = tuple[str, str, str]


def require_bounded(model: onnx.ModelProto) -> None:
    """Raise RelaxError for a model whose functions, inlined, are too many nodes, or have no end."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[Key, int] = {}
    under_way: list[Key] = []

    def of_function(key: Key) -> int:
        if key in sizes:
            return sizes[key]
        if key in under_way or len(under_way) >= MAX_DEPTH:
            raise RelaxError(
                f"the function {key[1]!r} of the model calls itself, or is too deep in others",
                expected=f"at most {MAX_DEPTH} functions in one another",
            )
        under_way.append(key)
        sizes[key] = of_nodes(functions[key].node)
        under_way.pop()
        return sizes[key]

    def of_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += of_function(key) if key in functions else 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += of_nodes(graph.node)
        return total

    found = of_nodes(model.graph.node)
    if found > MAX_NODES:
        raise RelaxError(
            "the functions of the model, each written out where it is called, are too many nodes",
            expected=f"at most {MAX_NODES:,}",
            found=f"{found:,}" if found < 10**18 else "more than 10**18",
        )


DEFAULT_DOMAINS = ("", "ai.onnx")
DEPTH = 8
"""How often functions that are in functions are inlined."""
NUMBERS = {
    "Clip": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "OneHot": (1, 2),
    "NonMaxSuppression": (2, 3, 4),
}
"""Inputs of floating point that are no weights."""


def prepared(model: onnx.ModelProto, constants: Mapping[str, object]) -> onnx.ModelProto:
    """Return a model that computes the same and that the importer can read."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _fix_inputs(copy, constants)
    copy = _inlined(copy)
    values, shapes = folded(copy)
    floats = {i.name: numpy_helper.to_array(i) for i in copy.graph.initializer}
    refuse_misread(copy.graph, {**floats, **values}, shapes)
    correct_momentum(copy.graph)
    _constants_of_initializers(copy.graph)
    return copy


def _fix_inputs(model: onnx.ModelProto, constants: Mapping[str, object]) -> None:
    graph = model.graph
    inputs = {i.name: i for i in graph.input}
    for name, value in constants.items():
        if name not in inputs:
            raise ArgumentError(f"the model has no input {name!r}", hint=nearest(name, inputs))
        dtype = helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)
        values = np.asarray(getattr(value, "numpy", lambda v=value: v)())
        if not np.can_cast(values.dtype, dtype, "same_kind"):
            raise ArgumentError(
                f"the constant for {name!r} is of another dtype", expected=dtype, found=values.dtype
            )
        _drop(graph.initializer, lambda i, name=name: i.name == name)
        graph.node.insert(0, constant_node(name, values.astype(dtype)))
        graph.input.remove(inputs[name])


def constant_node(name: str, value: Any) -> onnx.NodeProto:
    """Return a node that gives an array a name."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def _drop(repeated: Any, unwanted: Any) -> None:
    kept = [item for item in repeated if not unwanted(item)]
    del repeated[:]
    repeated.extend(kept)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline functions until the importer knows all operators, or nothing changes.

    Raises RelaxError for a function that onnx cannot inline.
    """
    try:
        if model.functions:
            require_bounded(model)
            model = inline_local_functions(model)
        for _ in range(DEPTH):
            unknown = sorted({n.op_type for n in model.graph.node if _is_better_inlined(n)})
            if not unknown:
                break
            _state_defaults(model.graph, unknown)
            model = inline_selected_functions(
                onnx.shape_inference.infer_shapes(model),
                [("", n) for n in unknown],
                inline_schema_functions=True,
            )
    except (RuntimeError, onnx.shape_inference.InferenceError) as error:
        raise RelaxError(f"onnx cannot inline a function of the model: {error}") from error
    return model


def _state_defaults(graph: onnx.GraphProto, names: list[str]) -> None:
    """State the default attributes of nodes that are to be inlined: onnx forgets some."""
    for node in graph.node:
        if node.op_type in names:
            stated = {a.name for a in node.attribute}
            for name, attribute in onnx.defs.get_schema(node.op_type).attributes.items():
                default = attribute.default_value
                if name not in stated and default.type != onnx.AttributeProto.UNDEFINED:
                    node.attribute.append(default)


def _is_better_inlined(node: onnx.NodeProto) -> bool:
    """Whether ONNX defines a node's operator by others, and the importer does not know it, or is
    wrong about it.
    """
    name = node.op_type
    if node.domain not in DEFAULT_DOMAINS or not onnx.defs.has(name):
        return False
    schema = onnx.defs.get_schema(name)
    if not schema.has_function and not schema.has_context_dependent_function:
        return False
    known = name in onnx_frontend._get_convert_map()
    # The importer knows another Attention, and of LayerNormalization only the first result.
    wrong = name == "Attention" or (name == "LayerNormalization" and len(node.output) > 1)
    return wrong or not known


def _constants_of_initializers(graph: onnx.GraphProto) -> None:
    """Make constants of initializers that are integers, single numbers, or no weights."""
    numbers = {
        node.input[i]
        for node in graph.node
        for i in NUMBERS.get(node.op_type, ())
        if i < len(node.input)
    }
    weights, nodes = [], []
    for initializer in graph.initializer:
        floating = initializer.data_type in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.DOUBLE,
            onnx.TensorProto.FLOAT16,
            onnx.TensorProto.BFLOAT16,
        )
        if floating and initializer.dims and initializer.name not in numbers:
            weights.append(initializer)
        else:
            value = numpy_helper.to_array(initializer)
            nodes.append(constant_node(initializer.name, value))
    kept = {w.name for w in weights}
    others = list(graph.node)
    fixed = {n.output[0] for n in nodes}
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(weights)
    graph.node.extend([*nodes, *others])
    _drop(graph.input, lambda i: i.name in kept or i.name in fixed)
