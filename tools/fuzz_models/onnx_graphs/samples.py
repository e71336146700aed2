"""The nodes that graphs are made of: those of onnx's own node tests that `from_onnx` converts.

A test is a sample: a node, its inputs, and what comes of them. So a converter of an operator that
onnx tests is drawn, and nothing else names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, version_converter
from onnx.backend.test.loader import load_model_tests

from meta.frontend.onnx.registry import onnx as converters
from tools.fuzz_models.onnx_graphs.program import kind_of, values_of

DTYPES = (*("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"),)
MOST = 1 << 12
"""Elements of an input of a test that is used."""


@dataclass(frozen=True, eq=False)
class NodeSample:
    """A node of a test, of an opset. inputs: its values, by name."""

    node: Any
    opset: int
    inputs: Mapping[str, Any]
    expected: tuple[Any, ...]

    def at(self, opset: int) -> Any:
        """Return the node in another opset; None if onnx cannot say what it is there."""
        name = self.node.op_type
        try:
            own = onnx.defs.get_schema(name, self.opset).since_version
            other = onnx.defs.get_schema(name, opset).since_version
        except onnx.defs.SchemaError:
            return None
        return self.node if own == other else _converted(self, other)


@cache
def samples() -> Mapping[str, tuple[NodeSample, ...]]:
    """Return the samples of each operator."""
    found: dict[str, list[NodeSample]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    for case in tests:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type not in converters:
            continue
        (node,), (inputs, expected) = nodes, case.data_sets[0]
        if not any(node.input) or not inputs:
            continue
        names = [i.name for i in case.model.graph.input]
        arrays = [np.asarray(v) if isinstance(v, np.ndarray | np.generic) else None
                  for v in (*inputs, *expected)]  # fmt: skip
        if all(a is not None and a.dtype.name in DTYPES and a.size <= MOST for a in arrays):
            given = dict(zip(names, arrays, strict=False))
            one = NodeSample(node, case.model.opset_import[0].version, given,
                             tuple(arrays[len(inputs):]))  # fmt: skip
            found.setdefault(node.op_type, []).append(one)
    return {name: tuple(found[name]) for name in sorted(found)}


@cache
def is_known(sample: NodeSample) -> bool:
    """Whether the reference evaluator gives what a test expects: some it computes otherwise."""
    outputs = [o for o in sample.node.output if o]
    try:
        (found,) = values_of([sample.node], sample.opset, [dict(sample.inputs)], outputs)
    except Exception:  # the evaluator's are of many kinds
        return False
    return all(
        np.shape(f) == e.shape and np.allclose(np.asarray(f), e, 1e-3, 1e-5, equal_nan=True)
        for f, e in zip(found, sample.expected, strict=False)
    )


@cache
def _converted(sample: NodeSample, opset: int) -> Any:
    """Return the node in the opset that defines the operator anew: in those after it, until the
    next that does, it is the same.
    """
    name = sample.node.op_type
    kinds = {n: (kind_of(v), v.shape) for n, v in sample.inputs.items()}
    inputs = [onnx.helper.make_tensor_value_info(n, *k) for n, k in kinds.items()]
    outputs = [onnx.helper.make_tensor_value_info(n, kind_of(v), v.shape)
               for n, v in zip(sample.node.output, sample.expected, strict=False)]  # fmt: skip
    vectors = [numpy_helper.from_array(v, n) for n, v in sample.inputs.items() if v.ndim <= 1]
    graph = onnx.helper.make_graph([sample.node], "g", inputs, outputs, vectors)
    ids = [onnx.helper.make_opsetid("", sample.opset)]
    try:
        model = version_converter.convert_version(
            onnx.helper.make_model(graph, opset_imports=ids), opset
        )
    except RuntimeError:
        return None
    nodes = list(model.graph.node)
    return nodes[0] if [n.op_type for n in nodes] == [name] else None
