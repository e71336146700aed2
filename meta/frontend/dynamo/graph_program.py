"""A graph of Dynamo's, seen as a program, so that patterns of programs are found in it.

Dynamo's graphs call Python's operators, functions and methods of PyTorch. Those that are pure and
have a converter become what the converter makes of them; the results of others are parameters, and
what they read is a result. Such a program is never run: it is searched before AOTAutograd derives
gradients, and what is found is replaced in the graph.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from meta import op
from meta.base.dtype import FROM_TORCH
from meta.base.errors import MetaError
from meta.dialect.core.ir_calls import new_call, op_call, tensor_of
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.graph import convert
from meta.frontend.aten.registry import aten, name_of, overload_of
from meta.frontend.core import Unconvertible
from meta.frontend.dynamo.extents import Extents, NotForAllSizes
from meta.frontend.dynamo.fx_nodes import erase, fake_value, insert_call
from meta.ir import (
    Binding,
    Block,
    Constant,
    Expr,
    Function,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    type_of,
)
from meta.op.core import Op
from meta.op.core.tracing import Symbol, Trace
from meta.passes.dead_code import dead_code
from meta.passes.deduplicate import eliminate_common_subexpressions

_CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
"""Methods that cast, but `to`."""
_NAMES = {"truediv": "div", "iadd": "add"}
"""ATen's names of Python's operators, where they differ."""
_SHAPED = {"view", "reshape", "expand", "permute", "repeat"}
"""Methods that take a list as numbers."""
NOT_CONVERTED = frozenset(["detach", "detach_", "requires_grad_", "item", "size"])
"""What has another gradient than its argument, or no tensor as its result."""
SWITCHES = frozenset(
    [
        "_set_grad_enabled",
        "_enter_autocast",
        "_exit_autocast",
        "_enter_inference_mode",
        "_exit_inference_mode",
    ]
)
"""Functions of PyTorch that change what others do."""
TorchCalls = Mapping[Op, Callable[..., Any]]
"""By operator, a function of its arguments, in the order of its schema, that PyTorch traces."""


def target_name(node: fx.Node) -> str:
    """Return the name of what a node calls, as ATen has it."""
    if node.op not in ("call_function", "call_method"):
        return ""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return _NAMES.get(name, name)


def may_write(node: fx.Node) -> bool:
    """Whether a node may write to a tensor that there was before it."""
    if node.op == "call_method":
        return str(node.target).endswith("_") or "out" in node.kwargs
    if node.op != "call_function":
        return node.op == "call_module"
    name = getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", "") == "_operator":
        plain = {name[1:], f"{name[1:]}_"} & set(dir(operator))  # `and_` of `iand`
        return name == "setitem" or (name[:1] == "i" and bool(plain))
    code = getattr(node.target, "__code__", None)  # of a function of Python's, as relu(x, True)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    if any(n == "inplace" and a is not False for n, a in zip(names, node.args, strict=False)):
        return True
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _body_may_write(node)
    return name.endswith("_") or "out" in node.kwargs or "inplace" in node.kwargs


def _body_may_write(node: fx.Node) -> bool:
    """Whether a function with a gradient of its own, or another node with graphs within, may write
    to a tensor.
    """
    parts = [a for a in node.args if isinstance(a, fx.Node) and a.op == "get_attr"]
    root: Any = node.graph.owning_module
    bodies = [root.get_submodule(str(a.target)) for a in parts if root is not None]
    known = bool(bodies) and all(isinstance(b, fx.GraphModule) for b in bodies)
    return not known or any(may_write(n) for b in bodies for n in b.graph.nodes)


def _adds_to_own(node: fx.Node) -> bool:
    """Whether a node adds, in place, to a result that nothing else reads."""
    if node.target is not operator.iadd or not isinstance(node.args[0], fx.Node):
        return False
    source = node.args[0]
    return list(source.users) == [node] and target_name(source) in ("add", "mul", "div", "matmul")


def disturbs(node: fx.Node) -> bool:
    """Whether a node may write a tensor that others read, or switches how PyTorch computes."""
    switches = getattr(node.target, "__name__", "") in SWITCHES
    opaque = isinstance(node.target, torch._ops.OpOverload)
    return switches or opaque or (may_write(node) and not _adds_to_own(node))


class GraphProgram:
    """A graph of Dynamo's as a program.

    Attributes
    ----------
    function: main, of which the inputs, and what is not converted, are parameters. nodes: by
    variable, the node whose result it is. owners: the node that a binding is of.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph.graph
        said = [fake_value(n) for n in self._graph.nodes if n.op == "placeholder"]
        self._extents = Extents({})
        with suppress(NotForAllSizes):
            self._extents = Extents.of_all_sizes([v for v in said if v is not None])
        self._trace = Trace()
        self._trace.site = lambda: None  # nodes have the lines
        self._parameters: list[Var] = []
        self._values: dict[fx.Node | None, Any] = {}
        self._autocast: set[fx.Node] = set()
        self.owners: dict[Expr, fx.Node] = {}
        self.nodes: dict[Expr, fx.Node] = {}
        results: list[Expr] = []
        self._trace.run(self._walk, results)
        block = self._trace.builder.finish(Tuple(tuple(dict.fromkeys(results))))
        function = Function(tuple(self._parameters), block, type_of(block.result))
        module = eliminate_common_subexpressions(dead_code(Module({"main": function})))
        self.function = module.main
        self._definitions: dict[Expr, Binding] = {b.var: b for b in self.function.body.bindings}
        self._reshaped = dict(self._reshapes())
        self._replaced: list[fx.Node] = []

    def _walk(self, results: list[Expr]) -> None:
        for node in self._graph.nodes:
            said = fake_value(node)
            before = len(self._trace.builder.bindings)
            converted = self._converted(node, said)
            if converted is None:
                for source in node.all_input_nodes:
                    found = self._values.get(source)
                    results += [v.atom for v in tree_leaves(found) if isinstance(v, Symbol)]
                converted = self._unknown(said)
            for binding in self._trace.builder.bindings[before:]:
                self.owners[binding.var] = node
            self._values[node] = converted
            if isinstance(converted, Symbol):
                self.nodes.setdefault(converted.atom, node)
            if may_write(node) and node.args and isinstance(node.args[0], fx.Node):
                written = node.args[0]  # from here on another value
                self._values[written] = self._unknown(fake_value(written))
                if isinstance(self._values[written], Symbol):
                    self.nodes[self._values[written].atom] = written

    def _reshapes(self) -> Iterator[tuple[Expr, Var]]:
        """Iterate over values that are not the result of a node, and the result of one that is a
        reshape of them.
        """
        for binding in self.function.body.bindings:
            call = op_call(binding.value)
            if call is not None and call.op is op.reshape and binding.var in self.nodes:
                source = call.args[0]
                if self.owners.get(source) is self.owners[binding.var]:
                    yield source, binding.var

    def _unknown(self, said: Any) -> Any:
        """Return what stands for a result that is not converted; None for what is no tensor."""
        type_ = self._extents.type_of(said)
        if type_ is not None:
            var, symbol = self._trace.parameter(type_, "")
            self._parameters.append(var)
            return symbol
        if isinstance(said, torch.SymInt):
            with suppress(NotForAllSizes, KeyError):
                return self._extents.of(said)
        return said if isinstance(said, int | float) else None

    def _converted(self, node: fx.Node, said: Any) -> Any:
        """Return the result of a node by what its converter makes of it; None if nothing is."""
        if node.op not in ("call_function", "call_method") or target_name(node) in NOT_CONVERTED:
            return None
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self._field(node, said)
        if may_write(node) and not _adds_to_own(node):
            return None
        call = _resolved(node)
        if call is None or any(self._values.get(n) is None for n in node.all_input_nodes):
            return None
        overload, args, kwargs = call
        values: Any = fx.map_arg((args, kwargs), self._values.__getitem__)
        args, kwargs = values
        result = self._checked(lambda: convert(overload, args, kwargs), said)
        if result is None and isinstance(said, Tensor) and said.dtype in FROM_TORCH:
            dtype = FROM_TORCH[said.dtype]  # under autocast
            args = [cast(a, dtype) if isinstance(a, Symbol) else a for a in args]
            result = self._checked(lambda: convert(overload, args, kwargs), said)
            self._autocast.add(node)
        return result

    def _field(self, node: fx.Node, said: Any) -> Any:
        given: Any = node.args
        source, index = given
        owner = self._values.get(source)
        if isinstance(owner, tuple) and isinstance(index, int):
            return owner[index]
        if not isinstance(owner, Symbol) or len(node.all_input_nodes) > 1:
            return None
        return self._checked(lambda: owner[index], said)

    def _checked(self, run: Callable[[], Any], said: Any) -> Any:
        """Return a result if it has the types that Dynamo says."""
        try:
            result = run()
        except (MetaError, Unconvertible):
            return None
        found, wanted = tree_leaves(result), tree_leaves(said)
        types = [v.type if isinstance(v, Symbol) else None for v in found]
        same = types == [*map(self._extents.type_of, wanted)]
        return result if same and None not in types else None

    def binding_of(self, node: fx.Node) -> Binding | None:
        """Return the binding whose result is that of a node, if the node was converted."""
        value = self._values.get(node)
        return self._definitions.get(value.atom) if isinstance(value, Symbol) else None

    def is_undisturbed(
        self, root: fx.Node, values: Iterable[Expr], sources: Iterable[Expr]
    ) -> bool:
        """Whether nothing before a node, from the first that computes some values of sources on,
        may write a tensor, or switches how PyTorch computes.
        """
        pending, steps = list(values), set[Expr](sources)
        missing: set[fx.Node] = set()
        while pending:
            binding = self._definitions.get(pending.pop())
            if binding is not None and binding.var not in steps:
                steps.add(binding.var)
                missing.add(self.owners[binding.var])
                pending += operands(binding.value)
        node = root
        while missing:
            missing.discard(node)
            if node.op == "root" or disturbs(node):  # the start: a node is not there any more
                return False
            node = node.prev
        return True

    def write(self, root: Binding, block: Block, calls: TorchCalls, in_order: bool = False) -> bool:
        """Write what a block computes in the place of the node that a binding is of; return whether
        this can be done (`erase_replaced` ends it).

        calls: by operator, a function of its arguments that PyTorch traces. in_order: whether the
        result is to lie in memory as its shape says.
        """
        node = self.owners[root.var]
        operand = self._operand_of_autocast(root)
        result = self._values[node] if operand is None else root
        after = [b for b in self._definitions.values() if self.owners[b.var] is node]
        after = after[after.index(root) + 1 :] if operand is None else []
        bindings = [*block.bindings, *after]
        own: set[Expr] = {root.var, *(b.var for b in bindings)}
        sources: set[Expr] = set()
        pending = [a for b in bindings for a in _atoms(b.value) if a not in own]
        while pending:
            atom = pending.pop()
            binding = self._as_view(atom) or self._definitions.get(atom)
            if atom in self.nodes or binding is None:
                sources.add(atom)
            elif atom not in own:  # a cast of autocast's, say
                own.add(atom)
                bindings.insert(0, binding)
                pending += _atoms(binding.value)
        served = node not in self._replaced and all(_is_served(b.value, calls) for b in bindings)
        if not isinstance(result, Symbol | Binding) or not served:
            return False
        if not sources <= self.nodes.keys():
            return False
        if not self.is_undisturbed(node, [root.var], sources):
            return False
        written: dict[Expr, fx.Node] = {}
        origins: dict[Expr, Expr] = {}
        made: list[fx.Node] = []
        with node.graph.inserting_before(node):
            for binding in bindings:
                nodes = {**self.nodes, **written}
                call, new = op_call(binding.value), None
                if call is not None and call.op is op.reshape:
                    # Each of two reshapes copies what does not lie as its shape says.
                    origin = origins[binding.var] = origins.get(call.args[0], call.args[0])
                    shape = tensor_of(binding.var).shape
                    binding = Binding(binding.var, new_call(op.reshape, origin, shape))
                    new = nodes[origin] if tensor_of(origin).shape == shape else None
                if new is None:
                    new = self._call(node, binding, nodes, calls)
                    made.append(new)
                written[binding.var] = new
                if binding.var is block.result:
                    written[root.var] = new
                    origins[root.var] = origins.get(binding.var, binding.var)
            new = written[result.atom if isinstance(result, Symbol) else root.var]
            if in_order:
                new = node.graph.call_method("contiguous", (new,))
                new.meta = {**node.meta}
        if operand is not None:
            source = new.args[0] if new.target is calls.get(op.astype) else None
            dtype = fake_value(operand).dtype
            if isinstance(source, fx.Node) and fake_value(source).dtype == dtype:
                new = source  # each reader casts it, so that gradients add up before the cast
            for name in self._same(operand):
                for reader in {node, *self._readers(name, tensor_of(root.var).dtype)}:
                    reader.replace_input_with(name, new)
                self._replaced.append(name)
        else:
            node.replace_all_uses_with(new)
            self.nodes.update((atom, new) for atom, one in [*self.nodes.items()] if one is node)
            self._replaced.append(node)
        erase(*(n for n in made if n is not new))
        return True

    def erase_replaced(self) -> None:
        """Erase the nodes that others were written for, and what only they read. Until then they
        are there for other matches, which may share steps with them.
        """
        erase(*self._replaced)

    def _operand_of_autocast(self, root: Binding) -> fx.Node | None:
        """Return the operand of its node that a binding casts, as autocast and the promotion of
        dtypes do before the node computes, which takes the result of the cast as well; None of
        other bindings.
        """
        call = op_call(root.value)
        if call is None or root.var in self.nodes or call.op is not op.astype:
            return None
        operand, node = self.nodes.get(call.args[0]), self.owners[root.var]
        return operand if node in self._autocast or operand in node.all_input_nodes else None

    def _same(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes whose result is that of a node, as of dropout that drops nothing."""
        value = self._values[node]
        atoms = {n: v.atom for n, v in self._values.items() if n and isinstance(v, Symbol)}
        return [n for n, atom in atoms.items() if atom is value.atom]

    def _readers(self, operand: fx.Node, dtype: str) -> set[fx.Node]:
        """Return the nodes for which autocast casts a value to a dtype, that of their result."""
        readers = self._autocast.intersection(operand.users)
        return {n for n in readers if FROM_TORCH[fake_value(n).dtype] == dtype}

    def _as_view(self, atom: Expr) -> Binding | None:
        """Return what computes a value of a result of its node, if that is a reshape of it, as
        fields of `unbind` are.
        """
        last = self._reshaped.get(atom)
        if last is None or not isinstance(atom, Var):
            return None
        return Binding(atom, new_call(op.reshape, last, tensor_of(atom).shape))

    def _call(
        self, root: fx.Node, binding: Binding, nodes: Mapping[Expr, fx.Node], calls: TorchCalls
    ) -> fx.Node:
        value: Any = binding.value
        function: Callable[..., Any] = operator.getitem
        if isinstance(value, TupleGetItem):
            given = value.value, value.index
        else:
            function, given = calls[value.callee], value.args
        args = (nodes.get(a, a) if isinstance(a, Expr) else a for a in given)
        return insert_call(root, function, *args)


def _atoms(value: Expr) -> list[Expr]:
    """Return the variables and constants that a value is computed of."""
    return [a for a in operands(value) if isinstance(a, Var | Constant)]


def _is_served(value: Expr, calls: TorchCalls) -> bool:
    call = op_call(value)
    return isinstance(value, TupleGetItem) or (call is not None and call.op in calls)


def _of_its_type(value: Any) -> Any:
    """Return what an overload is chosen by. To read the number of a SymInt would guard it."""
    fake = fake_value(value) if isinstance(value, fx.Node) else value
    return fx.node.map_aggregate(fake, lambda v: 1 if isinstance(v, torch.SymInt) else v)


def _resolved(node: fx.Node) -> tuple[torch._ops.OpOverload, Any, Any] | None:
    """Return the overload of ATen that a node calls and its arguments; None if there is none, or
    none that is converted.
    """
    name, args, kwargs = target_name(node), list[Any](node.args), dict[str, Any](node.kwargs)
    if name in _CASTS and len(args) == 1:
        name, args = "to", [*args, _CASTS[name]]
    if inspect.isfunction(node.target):
        given = _arguments(node)
        if given is None:
            return None
        args, kwargs = given
    first, *rest = args or [None]
    if name in _SHAPED and rest and not isinstance(rest[0], list | tuple | torch.dtype):
        args = [first, rest]  # x.view(2, 3)
    fakes: Any = fx.node.map_aggregate((tuple(args), kwargs), _of_its_type)
    try:
        found = torch._C._jit_resolve_packet(f"aten::{name}", *fakes[0], **fakes[1])
    except RuntimeError:  # there is no such overload
        return None
    overload = overload_of(name if found == "default" else f"{name}.{found}")
    return None if overload is None or name_of(overload) not in aten else (overload, args, kwargs)


def _arguments(node: fx.Node) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments of a function of Python's as the overload of its name takes them."""
    if getattr(node.target, "__module__", "") != functional.__name__:
        return None
    target: Any = node.target
    bound = inspect.signature(target).bind(*node.args, **node.kwargs)
    first, *rest = bound.arguments.items()
    given = {n: v for n, v in rest if not n.startswith("_") and v is not None and n != "inplace"}
    if node.target is functional.dropout:
        train = given.get("training", True) and given.get("p", 0.5) != 0.0
        return [first[1], given.get("p", 0.5), train], {}
    return [first[1]], given
