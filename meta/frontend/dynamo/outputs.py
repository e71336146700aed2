"""What the outputs of a graph are made of: results of its program, inputs as they are, views.

AOTAutograd counts on what its trace says of them: which share memory, with each other or with
inputs, and how they lie in memory, since the code behind the graph was traced with that.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from meta.base.device import Device
from meta.frontend.core.memory_order import (
    Order,
    inverse,
    is_contiguous_order,
    order_by_strides,
    order_of,
    permuted,
)
from meta.frontend.dynamo.extents import Extents, NotForAllSizes
from meta.frontend.dynamo.fx_nodes import fake_value, is_tensor, storage_of
from meta.ir.dims import SymbolicDim

_UNSAFE = torch.ops.aten._unsafe_view.default
ViewFunction = Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]


@dataclass(frozen=True)
class InputOutput:
    """The graph's input of this number, the very tensor."""

    number: int


@dataclass(frozen=True)
class ConstantOutput:
    """A value that is the same for every call; a symbolic dimension for every size."""

    value: Any


@dataclass(frozen=True)
class Result:
    """A result of the program.

    number: among the results. axes: how its axes are permuted to be the output's, None for as they
    are. strides: how the output lies in memory, if no order of axes says it. device: where it is to
    be, if elsewhere. shares: whether it may be in the memory of an input.
    """

    number: int
    axes: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    device: torch.device | None = None
    shares: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """A view of an input or of a result.

    base: what it is a view of. make: returns the view, of the base and the graph's inputs.
    """

    base: InputOutput | Result
    make: ViewFunction


Output = InputOutput | ConstantOutput | Result | View


@dataclass
class Outputs:
    """What the outputs of a graph are made of.

    each: by the number of an output. roots: by the number of a result of the program, the node it
    is, and the order of its axes. bases: results that are no outputs, and of which outputs are
    views.
    """

    each: list[Output] = field(default_factory=list)
    roots: list[tuple[fx.Node, Order]] = field(default_factory=list)
    bases: list[Result] = field(default_factory=list)

    def values(self, value_of: Mapping[fx.Node, Any]) -> list[Any]:
        """Return the program's results, of what the walker found for each node."""
        return [permuted(value_of[node], order) for node, order in self.roots]

    def unneeded(self, graph: fx.GraphModule) -> set[fx.Node]:
        """Return the views in a graph that PyTorch makes, and that the program does not need."""
        roots, found = {node for node, _ in self.roots}, set[fx.Node]()
        for node in reversed(graph.graph.nodes):
            users = (u for u in node.users if u.op != "output")
            if _makes_view(node) and node not in roots and found.issuperset(users):
                found.add(node)
        return found


@dataclass(frozen=True)
class Readers:
    """Who gets the outputs of a graph.

    Attributes
    ----------
    users: how many outputs the user gets; the others go to a graph of ours, which is given their
    elements without gaps. aliases: how many outputs share memory as in eager PyTorch, where they
    are views of inputs or of one another. regenerated: those of which AOTAutograd's wrapper takes
    sizes, strides and offset alone, to make the view anew.
    """

    users: int = sys.maxsize
    aliases: int = 0
    regenerated: frozenset[int] = frozenset()


NO_READERS = Readers()
"""Of a graph whose outputs share memory with nothing."""


def outputs_of(
    graph: fx.GraphModule, extents: Extents, device: Device, readers: Readers
) -> Outputs:
    """Return what the outputs of a graph are made of.

    A view that the user gets is made by PyTorch, by the calls that the graph has for it, with the
    sizes of each call: no offset and no stride is that of the traced sizes.
    """
    nodes = list(graph.graph.nodes)
    places = {n: i for i, n in enumerate(n for n in nodes if n.op == "placeholder")}
    wanted: Any = next(n for n in nodes if n.op == "output").args[0]
    given = {storage_of(n) for n in places}
    written = _copied_to_inputs(graph)
    # What is made anew of an input that is written is a view of the value that is written there.
    stops = {at: written if at in readers.regenerated else {} for at in range(len(wanted))}
    bases = {at: base_of(n, stops[at]) for at, n in enumerate(wanted) if is_tensor(n)}
    counts = Counter(bases.values())
    wholes = _shared_outputs(wanted, readers.aliases, given)
    found = Outputs()
    of_base: dict[fx.Node, Result] = {}

    def result(node: fx.Node, ours: bool) -> Result:
        said = node.meta["val"]
        own, order = _result(len(found.roots), said, extents, device, ours)
        found.roots.append((node, order))
        return replace(own, shares=storage_of(node) in given)

    def view(node: fx.Node, base: fx.Node) -> Output:
        """Return an output that shares the memory of a result."""
        if base not in of_base:
            of_base[base] = result(base, ours=False)
            if base not in wanted:
                found.bases.append(of_base[base])
        own = of_base[base]
        first = node is base and own not in found.each
        return own if first else View(own, view_function(node, base, places))

    def output(at: int, node: Any) -> Output:
        if isinstance(node, fx.Node) and node in places:
            return InputOutput(places[node])
        if not is_tensor(node):
            known = extents.of(node.meta["val"]) if isinstance(node, fx.Node) else node
            return ConstantOutput(known)
        base, said, aliased = bases[at], node.meta["val"], at < readers.aliases
        source = base if aliased and base not in written.values() else None
        if source not in places and at in readers.regenerated:
            source = written.get(base)
        if source in places:
            return View(InputOutput(places[source]), view_function(node, base, places))
        shared = counts[base] > 1 or at in readers.regenerated or _has_gaps(said, extents)
        if base in of_base or (shared and aliased):
            return view(node, base)
        number = wholes.get(storage_of(node), at)
        whole = found.each[number] if number < at else None
        if isinstance(whole, Result) and _is_plain_alias(said, wanted[number].meta["val"]):
            return View(whole, _by_strides(said))
        return result(node, at >= readers.users)

    for at, node in enumerate(wanted):
        found.each.append(output(at, node))
    return found


def base_of(node: fx.Node, stops: Collection[fx.Node] = ()) -> fx.Node:
    """Return what a tensor is a view of, by the schemas of the calls that make it, or the first of
    ``stops`` on the way there; itself, if it is none.
    """
    while node not in stops and _makes_view(node):
        (node, *_) = node.all_input_nodes
    return node


def _makes_view(node: fx.Node) -> bool:
    """Whether a node is a view of its first input, or such views as a list."""
    if node.target is operator.getitem:
        return _makes_view(cast(fx.Node, node.args[0]))
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or target == _UNSAFE)


def view_function(node: fx.Node, base: fx.Node, places: Mapping[fx.Node, int]) -> ViewFunction:
    """Return what makes a view of its base as the graph does.

    A size in its calls is computed from the base and the graph's inputs, by the expression that
    torch has for it: the graph may have it from tensors that nobody else needs.
    """
    calls = _between(node, base)
    sizes = {n: _expression(n) for call in calls for n in call.all_input_nodes[1:]}
    sources = symbol_sources([base, *places])
    used = {sources[symbol][0] for size in sizes.values() for symbol in size.free_symbols}
    inputs = [n for n in places if (n in used or n in sizes) and n is not base]
    graph = fx.Graph()
    copies = {base: graph.placeholder("base")}
    copies |= {n: graph.placeholder(f"input_{places[n]}") for n in inputs}
    tracer = fx.proxy.GraphAppendingTracer(graph)

    def value(symbol: sympy.Symbol) -> fx.Proxy:
        source, axis = sources[symbol]
        if axis is None:
            return fx.Proxy(copies[source], tracer)
        size = graph.call_function(torch.ops.aten.sym_size.int, (copies[source], axis))
        return fx.Proxy(size, tracer)

    for size, expression in sizes.items():
        if size not in copies:
            symbols = {symbol: value(symbol) for symbol in expression.free_symbols}
            found = sympy_interp(PythonReferenceAnalysis, symbols, expression)
            copies[size] = found.node if isinstance(found, fx.Proxy) else found
    if node is base:
        copies[node] = graph.call_function(torch.ops.aten.alias.default, (copies[base],))
    for each in calls:
        copies[each] = graph.node_copy(each, copies.__getitem__)
        if each.target == _UNSAFE:  # a view that has a count of writes of its own
            copies[each].target = torch.ops.aten.view.default
    graph.output(copies[node])
    run = fx.GraphModule({}, graph).forward
    numbers = [places[n] for n in inputs]
    return lambda tensor, args: run(tensor, *[args[i] for i in numbers])


def _expression(size: fx.Node) -> sympy.Expr:
    said = size.meta["val"]
    return said.node.expr if isinstance(said, torch.SymInt) else sympy.sympify(said)


def symbol_sources(nodes: Iterable[fx.Node]) -> dict[sympy.Symbol, tuple[fx.Node, int | None]]:
    """Return where each symbol is to be read: a number, or a tensor's axis; of the first nodes."""
    found: dict[sympy.Symbol, tuple[fx.Node, int | None]] = {}
    for node in nodes:
        said = fake_value(node)
        sizes = enumerate(said.shape) if isinstance(said, torch.Tensor) else [(None, said)]
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                found.setdefault(size.node.expr, (node, axis))
    return found


def _between(node: fx.Node, base: fx.Node) -> list[fx.Node]:
    """Return the calls that make a view of its base, in order."""
    calls: list[fx.Node] = []
    while node is not base:
        calls.append(node)
        (node, *_) = node.all_input_nodes
    return calls[::-1]


def _by_strides(said: torch.Tensor) -> ViewFunction:
    """Return what makes a view of known sizes of all of a memory."""
    shape, strides, offset = said.shape, said.stride(), said.storage_offset()
    return lambda whole, _: whole.as_strided(shape, strides, whole.storage_offset() + offset)


def _copied_to_inputs(graph: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """Return, by values that a graph copies to inputs, these inputs."""
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {n.args[1]: n.args[0] for n in copies if n.args[0].op == "placeholder"}


def _result(
    number: int, said: torch.Tensor, extents: Extents, device: Device, ours: bool
) -> tuple[Result, Order]:
    """Return what an output is, and the order of its axes in which the program returns it."""
    order = order_of(said)
    elsewhere = None if str(said.device) == str(device) else said.device
    if order is None and ours:
        order = order_by_strides(said)
    if order is not None:
        axes = None if is_contiguous_order(order) else inverse(order)
        return Result(number, axes, None, elsewhere), order
    if extents.symbolic:
        raise NotForAllSizes("an output is not dense")
    strides = tuple(map(extents.of, said.stride()))
    return Result(number, None, strides, elsewhere), tuple(range(said.ndim))


def _has_gaps(said: torch.Tensor, extents: Extents) -> bool:
    """Whether an output of symbolic sizes lies as a part of something lies."""
    return extents.symbolic and order_of(said) is None


def _is_plain_alias(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether two tensors read the same memory as the same numbers: a conjugate, a negative and a
    view in another dtype, as of the parts of complex numbers, do not.
    """
    same = view.is_conj() == whole.is_conj() and view.is_neg() == whole.is_neg()
    return same and view.dtype == whole.dtype


def _shared_outputs(wanted: Sequence[Any], aliases: int, given: Collection[Any]) -> dict[Any, int]:
    """Return, by memory that several outputs behind the first ``aliases`` share, the output that is
    all of it. Of memory that none is all of, is given, or is of symbolic sizes, they are copies.
    """
    found: dict[Any, int] = {}
    for at, node in enumerate(wanted):
        if at < aliases or not is_tensor(node) or node.op == "placeholder":
            continue
        said, size = node.meta["val"], node.meta["val"].untyped_storage().nbytes()
        if has_free_symbols((said, size)):
            continue
        whole = prod(said.shape) * said.itemsize == size
        if whole and order_of(said) is not None and storage_of(node) not in given:
            found.setdefault(storage_of(node), at)
    return found


def size_of(value: Any, extents: dict[str, int]) -> Any:
    """Return a `ConstantOutput` value in a call with these extents."""
    return value.evaluate(extents) if isinstance(value, SymbolicDim) else value
