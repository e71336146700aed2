"""From a graph of AOTAutograd's to a program: what its inputs are, what it computes, and what its
outputs are made of.

Every call of an overload is converted, or becomes one call of `torch_call`, which runs it in
PyTorch from within the program. A graph is never split.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from meta import op
from meta.base.device import CPU, Device
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError, MetaError
from meta.base.source import Span
from meta.dialect.torch.foreign import ProcessCall, call_text
from meta.frontend.aten.graph import Walker, convert
from meta.frontend.aten.registry import AtenError, name_of
from meta.frontend.core import Failure, Unconvertible, conversion_error
from meta.frontend.core.memory_order import Order, inverse, order_by_strides, order_of, permuted
from meta.frontend.dynamo.custom_operators import update_in_place
from meta.frontend.dynamo.extents import Extents, NotForAllSizes
from meta.frontend.dynamo.fx_nodes import arguments_of
from meta.frontend.dynamo.outputs import NO_READERS, Output, Readers, Result, outputs_of
from meta.ir import Call, Expr, Function, Module, TensorType, Tuple, Var, type_of
from meta.ir.dims import SymbolicDim, UnknownDim
from meta.op.core.call import View, map_tensors
from meta.op.core.op import Op
from meta.op.core.tracing import Symbol, Trace

_LINE = re.compile(r'File "(.+)", line (\d+)')
_BY_STRIDES = ("as_strided", "as_strided_copy", "as_strided_scatter")
"""Overloads whose first argument is its memory, whatever its shape."""


class NoProgram(AtenError):
    """A graph that is no program: of dtypes or layouts that programs do not have, with sizes that
    depend on data, or one that reads memory that no tensor is.
    """


@dataclass
class ConvertedGraph:
    """A program of a graph.

    Attributes
    ----------
    module: main takes ``inputs``, the numbers of the graph's placeholders that are tensors, but
    for the last ``bound`` of them; then a tensor for each of ``sizes``, symbols that no tensor has
    as an extent by itself, with that extent; then ``keys`` random keys; then the bound inputs,
    which are the same tensors in each call. It returns a tuple.
    orders: of each tensor, the order of its axes in which the program takes it. outputs: what the
    graph's outputs are made of. bases: results that are no outputs. calls_back: the calls that
    PyTorch runs, and why. kept: what these need that is in no program.
    """

    module: Module
    inputs: list[int]
    orders: list[Order]
    sizes: list[str]
    keys: int
    outputs: list[Output]
    bases: list[Result]
    device: Device
    bound: int = 0
    calls_back: list[Failure] = field(default_factory=list)
    kept: list[ProcessCall] = field(default_factory=list)

    @property
    def results(self) -> list[Result]:
        """What is made of the program's results, in their order."""
        found = [o for o in (*self.outputs, *self.bases) if isinstance(o, Result)]
        return sorted(found, key=lambda result: result.number)


class _ProgramTrace(Trace):
    """A program whose random keys are parameters, and whose lines are those of the user's model."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.keys: list[Var] = []
        self.node: fx.Node | None = None
        self.site = self._line

    def _line(self) -> Span | None:
        return None if self.node is None else span_of(self.node)

    def draw_key(self) -> Symbol:
        """Return a key of this call alone."""
        var, key = self.parameter(TensorType((1,), "int64"), "key")
        self.keys.append(var)
        return cast(Symbol, key)

    def _with_key(self, op: Op, bound: tuple[Any, ...]) -> tuple[Any, ...]:
        # PyTorch's own functions draw from its own generator.
        return bound if op.name == "torch_call" else super()._with_key(op, bound)


def span_of(node: fx.Node) -> Span | None:
    """Return the user's line that a node comes from, if torch says."""
    lines = _LINE.findall(node.meta.get("stack_trace") or "")
    return Span(lines[-1][0], int(lines[-1][1])) if lines else None


def device_of(values: Sequence[Any]) -> Device:
    """Return where a graph runs: on the first CUDA device that it has a tensor on, else the CPU."""
    found = [v.device for v in values if isinstance(v, torch.Tensor)]
    on_cuda = next((d for d in found if d.type == "cuda"), None)
    other = next((d for d in found if d.type not in ("cpu", "cuda")), None)
    if other is not None:
        raise AtenError(
            "the backend 'meta' runs on CPUs and on NVIDIA GPUs", found=f"a tensor on {other}"
        )
    return CPU if on_cuda is None else Device(str(on_cuda))


def is_accepted(tensor: torch.Tensor, device: Device) -> bool:
    """Whether a program takes a tensor as it lies in memory."""
    lies = order_of(tensor) is not None and str(tensor.device) == str(device)
    return lies and not tensor.is_conj() and not tensor.is_neg()


def type_in(tensor: torch.Tensor, extents: Extents, order: Order, name: str) -> TensorType:
    """Return the type of an input, with its axes in an order."""
    dtype = FROM_TORCH.get(tensor.dtype)
    if dtype is None or tensor.layout is not torch.strided:
        raise NoProgram(
            f"the input {name} is of a kind that programs do not have",
            expected=f"a dense tensor of one of {', '.join(FROM_TORCH.values())}",
            found=f"{tensor.dtype}, {tensor.layout}",
        )
    shape = extents.shape_of(tensor)
    return TensorType(tuple(shape[axis] for axis in order), dtype)


def convert_graph(
    graph: fx.GraphModule,
    extents: Extents,
    *,
    fallback: str,
    static: Collection[str] = (),
    readers: Readers = NO_READERS,
) -> ConvertedGraph:
    """Return the program of a graph.

    extents: of the sizes in it. fallback: "torch", or "error": AtenError lists all calls that are
    not converted. static: names of placeholders for which the same tensors are given in each call.
    readers: who gets the outputs.
    Raises NoProgram for what no program can have, and NotForAllSizes if ``extents``
    are symbolic and the graph is another one for other sizes.
    """
    complete_fake_results(graph)
    correct_fake_results(graph)
    update_in_place(graph)
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]
    said = [n.meta.get("val") for n in places]
    require_known_sizes(graph)
    trace = _ProgramTrace(device_of([n.meta.get("val") for n in graph.graph.nodes]))
    inputs = [i for i, value in enumerate(said) if isinstance(value, torch.Tensor)]
    same = [i for i in inputs if places[i].name in static and is_accepted(said[i], trace.device)]
    inputs = [*(i for i in inputs if i not in same), *same]
    orders = [order_by_strides(said[i]) for i in inputs]
    names = [places[i].name for i in inputs]
    pairs = [
        trace.parameter(type_in(said[i], extents, order, name), name)
        for i, order, name in zip(inputs, orders, names, strict=True)
    ]
    params = [var for var, _ in pairs]
    outputs = outputs_of(graph, extents, trace.device, readers)
    walker = GraphWalker(graph, trace, extents, fallback)
    walker.unneeded = outputs.unneeded(graph)

    def walk() -> Any:
        given = [extents.of(v) if isinstance(v, torch.SymInt) else v for v in said]
        for i, order, (_, symbol) in zip(inputs, orders, pairs, strict=True):
            walker.inputs[places[i]] = symbol, order
            given[i] = permuted(symbol, inverse(order))
        walker(*given)
        return walker.write(outputs.values(walker.values))

    results = trace.run(walk)
    known = {d for p in params for d in cast(TensorType, p.type).shape}
    dims = [d for d in extents.values.values() if isinstance(d, SymbolicDim)]
    sizes = [str(d) for d in dims if d not in known]
    carriers = [trace.parameter(TensorType((SymbolicDim(n),), "uint8"), n)[0] for n in sizes]
    body = trace.finish(tuple(results))
    given = len(params) - len(same)
    parameters = (*params[:given], *carriers, *trace.keys, *params[given:])
    main = Function(parameters, body, type_of(body.result))
    return ConvertedGraph(
        Module({"main": main, **trace.functions}, trace.types),
        inputs,
        orders,
        sizes,
        len(trace.keys),
        outputs.each,
        outputs.bases,
        trace.device,
        len(same),
        walker.calls_back,
        walker.kept,
    )


def complete_fake_results(graph: fx.GraphModule) -> None:
    """Give every call of a graph the type of its result, which the partitioner leaves out where it
    keeps the state of a random generator for a gradient.
    """
    mode = detect_fake_mode([n.meta.get("val") for n in graph.graph.nodes])
    for node in graph.graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        with mode or nullcontext():
            node.meta["val"] = node.target(*args, **kwargs)


def correct_fake_results(graph: fx.GraphModule) -> None:
    """Write beside calls the types that torch's kernels give where torch says others: before 2.13,
    that the logsumexp of attention of float64 on the CPU is float32; and, of sums of bags of
    bfloat16 there, that the bag of each index is returned, which is left out.
    """
    aten = torch.ops.aten
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in graph.graph.find_nodes(op="call_function", target=attention):
        y, logsumexp = node.meta["val"]
        if y.dtype == torch.float64 and logsumexp.dtype != y.dtype:
            _set_fake_result(node, 1, logsumexp.to(y.dtype))
    for target in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
        for node in graph.graph.find_nodes(op="call_function", target=target):
            y, bags = node.meta["val"][:2]
            given = arguments_of(node)
            sums = given["mode"] == 0 and given["padding_idx"] < 0
            if sums and y.dtype == torch.bfloat16 and y.device.type == "cpu" and bags.shape[0]:
                _set_fake_result(node, 1, bags[:0])


def _set_fake_result(node: fx.Node, number: int, said: torch.Tensor) -> None:
    """Write the type of a result of a call, by its number, beside the call and who takes it."""
    results = list(node.meta["val"])
    results[number] = said
    node.meta["val"] = tuple(results)
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == number:
            user.meta["val"] = said


def require_known_sizes(graph: fx.GraphModule) -> None:
    """Raise NoProgram for a size in a graph that depends on data."""
    for node in graph.graph.nodes:
        if free_unbacked_symbols(node.meta.get("val")):
            raise NoProgram(
                "a size depends on data, which is known at run time only",
                found=node.format_node(),
                span=span_of(node),
                hint="torch._dynamo.config.capture_scalar_outputs = False and "
                "capture_dynamic_output_shape_ops = False break the graph there",
            )


class GraphWalker(Walker):
    """Walks a graph of AOTAutograd's; what is not converted calls back into PyTorch."""

    def __init__(
        self, graph: fx.GraphModule, trace: _ProgramTrace, extents: Extents, fallback: str
    ) -> None:
        super().__init__(graph, outside=self._call_back)
        self.trace, self.extents, self.fallback = trace, extents, fallback
        self.calls_back: list[Failure] = []
        self.kept: list[ProcessCall] = []
        # By placeholder, the parameter of the program, and in which order its axes are.
        self.inputs: dict[fx.Node, tuple[Symbol, Order]] = {}
        self.writes: dict[Expr, Any] = {}

    def _call(self, node: fx.Node, values: Any) -> Any:
        self.trace.node = node
        said = node.meta.get("val")
        if isinstance(said, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.extents.of(said)
        return super()._call(node, values)

    def _higher_order(self, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
        return self._call_back(node, args, kwargs, Unconvertible("it takes functions"))

    def _overload(
        self, node: fx.Node, overload: torch._ops.OpOverload, args: Any, kwargs: Any
    ) -> Any:
        name = name_of(overload)
        if name == "copy_" and isinstance(node.args[0], fx.Node):
            return self._write(node.args[0], args)
        if name in _BY_STRIDES and not kwargs:
            return self._by_strides(node, overload, args)
        try:
            return self._with_extents(node, super()._overload(node, overload, args, kwargs))
        except AtenError:
            raise
        except MetaError as error:
            if self.extents.symbolic:
                raise NotForAllSizes(str(error)) from error
            why = Unconvertible(f"its converter fails: {str(error).splitlines()[0]}")
            return self._call_back(node, args, kwargs, why)

    def _with_extents(self, node: fx.Node, result: Any) -> Any:
        """Return a result of extents that only the run time knows with those that torch states."""
        if not any(isinstance(n, UnknownDim) for n in getattr(result, "shape", ())):
            return result
        type_ = self.result_type(node)
        return result if type_ is None else op.reshape(result, type_.shape)

    def result_type(self, node: fx.Node) -> TensorType | None:
        # Without one, a converter may find what it is itself.
        return self.extents.type_of(node.meta.get("val")) if self.extents.symbolic else None

    def _write(self, target: fx.Node, args: Any) -> Any:
        """Write a value to an input: AOTAutograd has a graph do so at its end."""
        if target not in self.inputs:
            raise AtenError("a graph writes to what is no input", found=target.format_node())
        memory, order = self.inputs[target]
        value = op.astype(op.broadcast_to(args[1], tuple(args[0].shape)), args[0].dtype)
        self.writes[memory.atom] = permuted(value, order)
        return args[0]

    def write(self, results: list[Any]) -> list[Any]:
        """Write to inputs, at the end; return the results, copies of those that are in the memory
        that is written.
        """
        if not self.writes:
            return results
        made: dict[Expr, Expr] = {b.var: b.value for b in self.trace.builder.bindings}

        def before(value: Any) -> Any:
            memory = self._memory_of(self.trace.lift(value).atom, made)
            return op.copy(value) if memory in self.writes else value

        results = [before(r) for r in results]
        values = [before(v) for v in self.writes.values()]
        symbols = {symbol.atom: symbol for symbol, _ in self.inputs.values()}
        for atom, value in zip(self.writes, values, strict=True):
            op.assign(symbols[atom], value)
        return results

    def _memory_of(self, atom: Expr, made: Mapping[Expr, Expr]) -> Expr:
        """Return what an atom is a view of, if it is one, by what variables are bound to."""
        while isinstance(call := made.get(atom), Call) and isinstance(call.callee, Op):
            given = tuple(a.fields if isinstance(a, Tuple) else a for a in call.args)
            types = map_tensors(call.callee, given, type_of)
            out = call.callee.call_values(types, self.trace.device).out
            if not isinstance(out, View):
                break
            atom = call.args[out.slot]
        return atom

    def _by_strides(self, node: fx.Node, overload: torch._ops.OpOverload, args: Any) -> Any:
        """Convert what reads the memory of its first argument, in the order in which it lies."""
        source: Any = node.args[0]  # a node: the overloads' first argument is a tensor
        said = source.meta["val"]
        if self.extents.symbolic:
            raise NotForAllSizes(name_of(overload))
        order = order_of(said)
        if order is None or said.storage_offset():
            raise NoProgram(
                "as_strided of a part of a tensor's memory may read what is no part of it",
                found=node.format_node(),
                span=span_of(node),
            )
        args = (permuted(args[0], order), *args[1:])

        def run() -> Any:
            result = convert(overload, args, {})
            scatters = name_of(overload) == "as_strided_scatter"
            return permuted(result, inverse(order)) if scatters else result

        return self._checked(node, args, {}, run)

    def _call_back(self, node: fx.Node, args: Any, kwargs: Any, why: Unconvertible) -> Any:
        """Return what PyTorch is to compute, as results of one call."""
        said = node.meta.get("val")
        target = str(node.target)
        name = target.removeprefix("aten.").removesuffix(".default")
        failure = Failure(name, why.why, why.hint, str(span_of(node) or node.name))
        if self.fallback == "error":
            self.failures.append(failure)
            return self._stand_in(said)
        self.calls_back.append(failure)
        try:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                target, args = self._with_functions(node.target, args, kwargs)
                kwargs = {}
            text, tensors, dims = call_text(target, args, kwargs)
            types = [self._type(t) for t in pytree.tree_leaves(said) if isinstance(t, torch.Tensor)]
        except ArgumentError as error:
            raise conversion_error(
                [Failure(name, str(error), None, failure.place)], NoProgram
            ) from error
        shapes = tuple(d for t in types for d in t.shape)
        ends = tuple(sum(t.ndim for t in types[: i + 1]) for i in range(len(types)))
        dtypes = ",".join(t.dtype for t in types)
        results = op.torch_call(tuple(tensors), text, dtypes, shapes, ends, tuple(dims))
        rest = iter(results)
        # What is no tensor is as torch says it.
        return pytree.tree_map(lambda s: next(rest) if isinstance(s, torch.Tensor) else s, said)

    def _with_functions(self, operator: Any, args: Any, kwargs: Any) -> tuple[str, list[Any]]:
        """Return the name of a function of tensors alone that calls an operator with these
        arguments, graphs among them, and the tensors.
        """
        if self.extents.symbolic:
            raise NotForAllSizes(f"{operator} is called with functions")
        leaves, structure = pytree.tree_flatten((args, kwargs))
        leaves = [v.module if isinstance(v, Walker) else v for v in leaves]
        places = [i for i, v in enumerate(leaves) if hasattr(v, "shape")]
        tensors = [leaves[i] for i in places]
        rest = [None if i in places else v for i, v in enumerate(leaves)]

        def run(*values: Any) -> Any:
            given = list(rest)
            for place, value in zip(places, values, strict=True):
                given[place] = value
            args, kwargs = pytree.tree_unflatten(given, structure)
            return operator(*args, **kwargs)

        self.kept.append(ProcessCall(run))
        return self.kept[-1].name, tensors

    def _type(self, tensor: torch.Tensor) -> TensorType:
        dtype = FROM_TORCH.get(tensor.dtype)
        if dtype is None:
            raise ArgumentError("programs do not have the dtype of a result", found=tensor.dtype)
        return TensorType(self.extents.shape_of(tensor), dtype)
