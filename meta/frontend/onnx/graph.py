"""Prepares an ONNX graph for TVM's importer, which needs to know more than a graph says.

In this order: inputs that are given become constants; functions of the model are inlined, and those
operators that the importer does not know but ONNX defines by others; what follows from constants
and known extents alone is computed, since the importer wants shapes, axes and the like as constants
and exporters write them as nodes; what the importer would read as something else, without an error,
is refused (`MISREAD`) or put right; initializers that are no weights become constants.

What it misreads was found with the tests of onnx itself, ``python -m tools.onnx_node_tests``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.inliner import inline_local_functions, inline_selected_functions
from onnx.reference import ReferenceEvaluator
from tvm.relax.frontend.onnx import onnx_frontend

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.frontend.core import Failure, failed
from meta.frontend.relax.registry import RelaxError

SMALL = 4096
"""Elements of a value that is still computed now."""
RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


DTYPES = {
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
}
"""The attributes of a constant that are no tensor."""


Values = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def folded(model: onnx.ModelProto) -> tuple[Values, Shapes]:
    """Replace small known nodes by constants, in place; return known values and shapes."""
    graph = model.graph
    shapes = _extents(model)
    values = {
        i.name: numpy_helper.to_array(i)
        for i in graph.initializer
        if i.data_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
        and prod(i.dims) <= SMALL
    }
    nodes = []
    for node in graph.node:
        results = _results(model, node, values, shapes)
        if results is None:
            nodes.append(node)
            continue
        for name, value in zip(node.output, results, strict=True):
            if name:
                values[name] = value
                nodes.append(constant_node(name, value))
    del graph.node[:]
    graph.node.extend(nodes)
    return values, shapes


def _extents(model: onnx.ModelProto) -> Shapes:
    """Return the shapes that are known, by name."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return {}
    graph = inferred.graph
    shapes = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.HasField("shape"):
            dims = tensor.shape.dim
            if all(d.HasField("dim_value") for d in dims):
                shapes[value.name] = tuple(d.dim_value for d in dims)
    shapes.update({i.name: tuple(i.dims) for i in graph.initializer})
    return {name: shape for name, shape in shapes.items() if all(0 <= d < 1 << 63 for d in shape)}


def _results(
    model: onnx.ModelProto, node: onnx.NodeProto, values: Values, shapes: Shapes
) -> list[Any] | None:
    """Return the values of a node, or None if they are not known or not small."""
    if node.op_type == "Constant":
        return _constant(node)
    inputs = [i for i in node.input if i]
    if node.op_type in ("Shape", "Size") and inputs and inputs[0] in shapes:
        given = {inputs[0]: np.broadcast_to(np.float32(0), shapes[inputs[0]])}
    elif inputs and all(i in values for i in inputs) and not _has_effect(node):
        given = {i: values[i] for i in inputs}
    else:
        return None
    declared = [shapes.get(o) for o in node.output if o]
    if any(s is not None and prod(s) > SMALL for s in declared):
        return None
    results = _run(model, node, given)
    if results is None:
        return None
    fits = all(isinstance(r, np.ndarray | np.generic) and np.size(r) <= SMALL for r in results)
    return [np.asarray(r) for r in results] if fits else None


def _constant(node: onnx.NodeProto) -> list[Any] | None:
    """Return what a constant is, however the node says it; None for text and large ones."""
    attribute = node.attribute[0]
    if attribute.name == "value":
        if attribute.t.data_type == onnx.TensorProto.STRING:
            return None
        value = numpy_helper.to_array(attribute.t)
    elif attribute.name in DTYPES:
        value = np.array(helper.get_attribute_value(attribute), DTYPES[attribute.name])
    else:
        return None
    return [value] if value.size <= SMALL else None


def _has_effect(node: onnx.NodeProto) -> bool:
    """Whether a node draws numbers, or contains a graph, which may refer to others."""
    graphs = any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)
    return graphs or node.op_type in RANDOM


def _run(model: onnx.ModelProto, node: onnx.NodeProto, given: dict[str, Any]) -> list[Any] | None:
    """Return what onnx computes, None where it says that it cannot; RelaxError for bad values."""

    def value(name: str) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(given[name].dtype)
        return helper.make_tensor_value_info(name, dtype, given[name].shape)

    outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    graph = helper.make_graph([node], "node", [value(n) for n in given], outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        results = ReferenceEvaluator(single).run(None, given)
    except (RuntimeError, MemoryError):
        # With the first onnx speaks of operators, types and attributes (NotImplementedError is
        # one); a value that takes so much memory is not small.
        return None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RelaxError(
            f"the node {node.name or node.output[0]!r} cannot be computed: "
            f"{node.op_type} of {', '.join(f'{n} {list(x.shape)}' for n, x in given.items())}",
            found=f"{type(error).__name__}: {error}",
            hint="onnx.checker.check_model(model, full_check=True) finds faults of a model",
        ) from error
    found = iter(results)
    return [next(found) if o else None for o in node.output]


MAX_NODES = 1 << 20
"""Nodes that a model may have then."""
MAX_DEPTH = 100
"""How deep functions may be in functions."""

FLOATS = {getattr(onnx.TensorProto, name) for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")}
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
    """Inline functions until the importer knows all operators, or nothing changes."""
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
    """Whether ONNX defines an operator by others, and the importer misses or misreads it."""
    name = node.op_type
    if node.domain not in DEFAULT_DOMAINS or not onnx.defs.has(name):
        return False
    schema: Any = onnx.defs.get_schema(name)
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
        floating = initializer.data_type in FLOATS
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


Attributes = Mapping[str, Any]


def _resize(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    scales = values.get(node.input[2]) if len(node.input) > 2 else None
    shape = shapes.get(node.input[0])
    if scales is None or not len(scales) or "axes" in given:
        return None
    extents = shape if shape is not None else (1,) * len(scales)
    if all(float(e * s).is_integer() for e, s in zip(extents, scales, strict=True)):
        return None
    return "scales that give no whole extents are not supported"


def _suppression(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    unknown = [n for n in node.input[2:] if n and n not in values]
    return f"{unknown[0]!r} must be a constant" if unknown else None


def _cast(node: onnx.NodeProto, given: Attributes, values: Any, shapes: Any) -> str | None:
    """What is beyond float8_e4m3fn is its largest number here, and beyond float8_e5m2 infinite."""
    saturated, to = given.get("saturate", 1), given.get("to")
    if to == onnx.TensorProto.FLOAT8E4M3FN and not saturated:
        return "float8_e4m3fn with NaN for what is beyond its range is not supported"
    if to == onnx.TensorProto.FLOAT8E5M2 and saturated:
        return "float8_e5m2 without infinities is not supported"
    return None


_FILTERING = "filtering before it makes an image smaller (antialias) is not supported"
_ONE_SIGN = "infinity of one sign is not supported"
MISREAD = (
    ("ConvTranspose", "output_shape", None, "output_shape is not supported"),
    ("IsInf", "detect_negative", 1, _ONE_SIGN),
    ("IsInf", "detect_positive", 1, _ONE_SIGN),
    ("Resize", "antialias", 0, _FILTERING),
    ("RoiAlign", "mode", b"avg", "the greatest of weighted elements (mode='max') is not supported"),
    ("SpaceToDepth", "mode", b"DCR", "mode={!r} is not supported"),
)
"""An operator, an attribute, the value (the default) that the importer goes by, and why a node with
another one cannot be imported.
"""
MISREAD_NODES = {"Cast": _cast, "NonMaxSuppression": _suppression, "Resize": _resize}
"""By operator, a function of its node, attributes, the values and the shapes that are known, which
returns why it cannot be imported, or None.
"""


def _why_misread(
    node: onnx.NodeProto, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> str | None:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for operator, attribute, value, why in MISREAD:
        found = given.get(attribute, value)
        if operator == node.op_type and found != value:
            return why.format(found.decode() if isinstance(found, bytes) else found)
    rule = MISREAD_NODES.get(node.op_type)
    return rule(node, given, values, shapes) if rule is not None else None


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs in it, the branches of `If`."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs
            for part in inner:
                yield from all_nodes(part)


def refuse_misread(
    graph: onnx.GraphProto, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise RelaxError, listing all of them, for nodes that the importer would read wrongly."""
    failures = []
    for node in all_nodes(graph):
        why = _why_misread(node, values, shapes)
        if why is not None:
            failures.append(Failure(node.op_type, why, place=node.name or node.output[0]))
    if failures:
        raise failed(failures, RelaxError)


def correct_momentum(graph: onnx.GraphProto) -> None:
    """Make the momentum of batch normalisation the weight of what is new, not of what was."""
    for node in all_nodes(graph):
        if node.op_type == "BatchNormalization":
            found = [a for a in node.attribute if a.name == "momentum"]
            if not found:
                node.attribute.append(helper.make_attribute("momentum", 0.9))
            attribute = next(a for a in node.attribute if a.name == "momentum")
            attribute.f = 1.0 - attribute.f
