"""Computes what in an ONNX graph follows from constants and known extents alone.

TVM's importer wants shapes, axes and the like as constants, and exporters write them as nodes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from meta.frontend.relax.errors import RelaxError

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
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
"""The attributes of a constant that are no tensor."""


Values = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def folded(model: onnx.ModelProto) -> tuple[Values, Shapes]:
    """Replace in place each node whose value is known and small by a constant.

    Returns the values and the shapes that are known, by name.
    """
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
                tensor = numpy_helper.from_array(value)
                nodes.append(helper.make_node("Constant", [], [name], value=tensor))
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
    """Return what onnx's reference implementation computes; None where it says that it cannot,
    which leaves the node to the importer. RelaxError for values that do not fit the operator.
    """

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
