"""Walks an ONNX graph and calls the converters: what `OnnxModel.convert` does under a trace.

Values have names, and a subgraph sees those around it. What is computed of small known arrays alone
is computed at once: shapes, axes and the like are numbers to the converters. Functions of the
model, and operators without converter that ONNX defines by others, are expanded. A node that cannot
be converted is noted, and so are all others, before one error lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto, helper

import meta.frontend.onnx.converters  # noqa: F401  (registers them)
from meta.base.dtype import TO_NUMPY
from meta.base.errors import MetaError
from meta.base.progress import bar
from meta.frontend.core import (
    BAD_ATTRIBUTES,
    CallSite,
    Failure,
    Unconvertible,
    active_trace,
    conversion_error,
    fold_constants,
    leaves,
)
from meta.frontend.onnx.registry import (
    DEFAULT_DOMAINS,
    OnnxError,
    attribute_value,
    defaults_of,
    full_name,
    onnx,
    schema_of,
)
from meta.frontend.onnx.shape_inference import (
    TAKES_EXTENTS,
    Axis,
    Extents,
    as_tensor,
    extents_of,
    infer,
)
from meta.frontend.onnx.text import fold_text, is_of_text
from meta.frontend.onnx.values import apply_narrow, array_of, carrier
from meta.ir.dims import SymbolicDim
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import ndarray

SMALL = 4096
"""Elements of an array that is still computed while converting."""
MAX_DEPTH = 100
"""How deep functions may be in functions."""
Opsets = Mapping[str, int]
FunctionKey = tuple[str, str, str]


class _Failed:
    """The value of a node that cannot be converted, and of all that use it."""

    def __repr__(self) -> str:
        return "<not converted>"


FAILED = _Failed()


class _ReportedError(Unconvertible):
    """A graph inside of a node cannot be converted, for reasons that are listed already."""


@dataclass(frozen=True)
class Scope:
    """A graph or function under way.

    Attributes
    ----------
    values: by name; of the graphs around it too. opsets: versions by domain. attributes: of the
    function that is expanded, by name. depth: how many functions are around.
    """

    values: dict[str, Any]
    opsets: Opsets
    attributes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0

    def inner(self) -> Scope:
        """Return a scope for a graph inside, which sees what is here."""
        return Scope(dict(self.values), self.opsets, self.attributes, self.depth)


@dataclass(frozen=True)
class Subgraph:
    """A graph that is an attribute of a node: a function of its inputs.

    It is called under the trace in force, which may be that of a block, and returns a tuple of its
    outputs.
    """

    walker: Walker
    graph: GraphProto
    scope: Scope

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(i.name for i in self.graph.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(o.name for o in self.graph.output)

    @property
    def draws(self) -> bool:
        """Whether a node of the graph, or of the functions that it calls, draws random numbers."""
        return self.walker.draws(self.graph.node)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if len(inputs) != len(self.graph.input):
            raise Unconvertible(
                f"its graph takes {len(self.graph.input)} values, and is given {len(inputs)}"
            )
        scope = self.scope.inner()
        scope.values.update(zip(self.inputs, inputs, strict=True))
        results = self.walker.graph(self.graph, scope)
        if any(contains_failure(r) for r in results):
            raise _ReportedError("its graph is not converted")
        return results


class Walker:
    """Converts the graphs of one model, for one trace.

    functions: those of the model, by domain, name and overload.
    """

    def __init__(self, functions: Mapping[FunctionKey, FunctionProto], training: bool) -> None:
        self.functions, self.training = functions, training
        self.failures: list[Failure] = []
        self._places: dict[SymbolicDim, Axis] = {}

    def placed(self, value: Any) -> Any:
        """Return a value; extents know where those of inputs are found, too."""
        if isinstance(value, Extents):
            return replace(value, places={**self._places, **value.places})
        return value

    def tensor(self, value: Any) -> Any:
        """Return a value, of extents that are known by name the tensor."""
        return as_tensor(self.placed(value), active_trace().device)

    def main(self, graph: GraphProto, opsets: Opsets, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the outputs of a graph whose inputs and initializers are given; OnnxError lists
        every node that cannot be converted.
        """
        for value in values.values():
            found = extents_of(value) if isinstance(value, Symbol) else None
            self._places.update(found.places if found is not None else {})
        results = self.graph(graph, Scope(dict(values), opsets), "converting")
        if self.failures:
            raise conversion_error(self.failures, OnnxError)
        return results

    def draws(self, nodes: Iterable[NodeProto]) -> bool:
        """Whether one of the nodes, in graphs and functions inside of them too, draws random
        numbers.
        """
        for node in nodes:
            function = self.functions.get((node.domain, node.op_type, node.overload))
            graphs = [g for a in node.attribute for g in (a.g, *a.graphs)]
            inner = [*(function.node if function else ()), *(n for g in graphs for n in g.node)]
            if _is_random(full_name(node.domain, node.op_type)) or self.draws(inner):
                return True
        return False

    def graph(
        self, graph: GraphProto, scope: Scope, progress: str | None = None
    ) -> tuple[Any, ...]:
        """Convert the nodes of a graph in a scope that has its inputs; return its outputs."""
        device = active_trace().device
        for tensor in graph.initializer:
            scope.values[tensor.name] = array_of(tensor, device)
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = array_of(sparse, device)
        if progress is None:
            self._nodes(scope, graph.node)
        else:
            with bar(len(graph.node), progress, delay=1.0) as steps:
                for node in graph.node:
                    self._node(scope, node)
                    steps.update()
        return tuple(self.tensor(_value_of(scope, o.name)) for o in graph.output)

    def _nodes(self, scope: Scope, nodes: Sequence[NodeProto]) -> None:
        for node in nodes:
            self._node(scope, node)

    def _node(self, scope: Scope, node: NodeProto) -> None:
        """Bind the outputs of a node; those of one that cannot be converted to `FAILED`."""
        inputs = tuple(_value_of(scope, name) if name else None for name in node.input)
        outputs = list(node.output)
        while outputs and not outputs[-1]:
            outputs.pop()
        results: tuple[Any, ...] = (FAILED,) * len(outputs)
        if not any(map(contains_failure, inputs)):
            try:
                found = self._call(scope, node, _without_trailing(inputs), len(outputs))
                results = found if isinstance(found, tuple) else (found,)
                if len(results) < len(outputs):
                    raise Unconvertible(f"its result number {len(results) + 1} is not supported")
            except _ReportedError:
                pass
            except Unconvertible as error:
                self._fail(node, error)
            except MetaError as error:
                error.note(f"converting the ONNX node {node_name(node)!r}, {node.op_type}")
                raise
            except BAD_ATTRIBUTES as error:
                raise OnnxError(
                    f"the node {node_name(node)!r}, {node.op_type}, cannot be converted: "
                    f"{error or type(error).__name__}"
                ) from error
        for name, value in zip(outputs, results, strict=False):
            if name:
                scope.values[name] = value

    def _fail(self, node: NodeProto, error: Unconvertible) -> None:
        name = full_name(node.domain, node.op_type)
        self.failures.append(Failure(name, error.why, error.hint, node_name(node)))

    def _call(self, scope: Scope, node: NodeProto, inputs: tuple[Any, ...], results: int) -> Any:
        stated = self._attributes(scope, node)
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            return self._function(scope, function, inputs, stated)
        name, opset = full_name(node.domain, node.op_type), opset_of(scope.opsets, node.domain)
        attributes = {**defaults_of(name, opset), **stated}
        if is_of_text(name, inputs, attributes):
            opsets = {**scope.opsets, node.domain: opset}
            return fold_text(_with_attributes(node, stated), opsets, inputs, active_trace().device)
        if onnx.get(name) is None:
            body = body_of(name, opset, _with_attributes(node, attributes), inputs)
            if body is not None:
                return self._function(scope, body, inputs, attributes)
        site = CallSite(
            name,
            (opset, 0),
            frozenset(stated),
            training=self.training,
            device=active_trace().device,
            results=results,
        )
        found = infer(name, inputs, attributes, site.device)
        if found is not None:
            return found
        data = TAKES_EXTENTS.get(name, len(inputs))
        inputs = (*map(self.tensor, inputs[:data]), *map(self.placed, inputs[data:]))
        convert = partial(apply_narrow, name, partial(_apply, site, attributes), inputs)
        if any(isinstance(v, Subgraph) for v in attributes.values()):
            result = convert()
        else:
            # Products of a frozen program read the integers of a weight.
            is_weight = name == "DequantizeLinear" and inputs[0].ndim > 1
            most = 0 if is_weight else SMALL
            result = fold_constants(convert, inputs, site.device, most, _carriers)
        if result is not NotImplemented:
            return result
        body = body_of(name, opset, _with_attributes(node, attributes), inputs)
        if body is None:
            raise Unconvertible("neither its converter nor ONNX says what these inputs give")
        return self._function(scope, body, inputs, attributes)

    def _attributes(self, scope: Scope, node: NodeProto) -> dict[str, Any]:
        """Return the attributes that a node states, those of its function put in."""
        found = {}
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in scope.attributes:
                    value = scope.attributes[attribute.ref_attr_name]
                    if value is not None:
                        found[attribute.name] = value
            elif attribute.type == AttributeProto.GRAPH:
                found[attribute.name] = Subgraph(self, attribute.g, scope)
            elif attribute.type == AttributeProto.GRAPHS:
                found[attribute.name] = tuple(Subgraph(self, g, scope) for g in attribute.graphs)
            else:
                found[attribute.name] = attribute_value(attribute)
        return found

    def _function(
        self,
        scope: Scope,
        function: FunctionProto,
        inputs: tuple[Any, ...],
        attributes: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """Expand a function; `FAILED` among its results has its reason listed."""
        if scope.depth >= MAX_DEPTH:
            raise OnnxError(
                f"the function {function.name!r} of the model calls itself, or is too deep in "
                "others",
                expected=f"at most {MAX_DEPTH} functions in one another",
            )
        given = {a.name: attribute_value(a) for a in function.attribute_proto} | dict(attributes)
        values: dict[str, Any] = dict.fromkeys(function.input)
        values.update(zip(function.input, inputs, strict=False))
        opsets = {o.domain: o.version for o in function.opset_import} or scope.opsets
        inner = Scope(values, opsets, given, scope.depth + 1)
        self._nodes(inner, function.node)
        # A body that depends on the node has no value for results that the node does not name.
        return tuple(inner.values.get(name) for name in function.output)


def _apply(site: CallSite, attributes: Mapping[str, Any], inputs: tuple[Any, ...]) -> Any:
    return onnx.apply(site, inputs, attributes)


def _value_of(scope: Scope, name: str) -> Any:
    if name not in scope.values:
        raise OnnxError(f"the value {name!r} of the ONNX model is used before it is computed")
    return scope.values[name]


def _without_trailing(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    count = len(inputs)
    while count and inputs[count - 1] is None:
        count -= 1
    return inputs[:count]


def node_name(node: NodeProto) -> str:
    """Return what a node is called in an error."""
    return str(node.name or next((o for o in node.output if o), node.op_type))


def opset_of(opsets: Opsets, domain: str) -> int:
    """Return the version of a domain's operator set; 1 if the model states none."""
    names = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
    return next((opsets[n] for n in names if n in opsets), 1)


def contains_failure(value: Any) -> bool:
    """Whether a value is, or has in it, one that could not be converted."""
    if isinstance(value, tuple | list):
        return any(map(contains_failure, value))
    return value is FAILED


def body_of(name: str, opset: int, node: NodeProto, inputs: Sequence[Any]) -> FunctionProto | None:
    """Return the function that an operator's schema defines it by for inputs of these types; None
    if it defines none.
    """
    schema = schema_of(name, opset)
    if schema is None:
        return None
    text = b""
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if schema.has_function and versions:
        text = schema.get_function_with_opset_version(max(versions))
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not text and schema.has_context_dependent_function and versions:
        types = [_type_of(value).SerializeToString() for value in inputs]
        text = schema.get_context_dependent_function_with_opset_version(
            max(versions), node.SerializeToString(), types
        )
    function = FunctionProto()
    function.MergeFromString(text)
    return function if function.node else None


def _with_attributes(node: NodeProto, attributes: Mapping[str, Any]) -> NodeProto:
    """Return a node that states its attributes, defaults and those of its function too: a body that
    depends on the node is made from what it states.
    """
    stated = NodeProto()
    stated.CopyFrom(node)
    own = {a.name: a for a in node.attribute}
    del stated.attribute[:]
    for name, value in attributes.items():
        if name in own and not own[name].ref_attr_name:
            stated.attribute.append(own[name])
        elif value is not None:
            kind = own[name].type if name in own else None
            stated.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    return stated


def _type_of(value: Any) -> TypeProto:
    """Return the type of a value, of one that is left out an empty one."""
    if not isinstance(value, Symbol | ndarray | Extents):
        return TypeProto()
    shape = [d if isinstance(d, int) else None for d in value.shape]
    kind = helper.np_dtype_to_tensor_dtype(TO_NUMPY[value.dtype])
    return helper.make_tensor_type_proto(kind, shape)


def _is_random(name: str) -> bool:
    """Whether the results of an operator do not follow from its inputs alone."""
    converter = onnx.get(name)
    made_of = () if converter is None else converter.becomes
    return any(op.random for op in made_of)


def _carriers(value: Any) -> list[Any]:
    """Return the arrays and symbols in a value, of narrow ones what holds them."""
    return leaves(carrier(value))
