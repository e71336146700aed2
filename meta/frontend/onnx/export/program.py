"""Programs as graphs: every binding of main, and of the functions that it calls, in order.

An `If` is one of ONNX. A function that calls itself as the last thing of a branch, which is what
`meta.while_loop` and `meta.scan` become, is a `Loop`; others are written where they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from meta import op as operators
from meta.base.call_context import use
from meta.dialect.core.ir_calls import base_op, leaf_types
from meta.frontend.core import Failure, Unconvertible
from meta.frontend.onnx.export.graph import Graph
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Module,
    SymbolicDim,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
)
from meta.ir.visit import inner_blocks
from meta.op.core.call import call_text, map_tensors
from meta.op.core.tracing import Symbol

FAILED = None
"""What stands for a value that is no tensor; for a tensor there is one that nothing gives."""
Scope = dict[Var, Any]
NO_FORM = "ONNX has no data values, references and functions that are values"


class ProgramExporter:
    """Writes a module's main; ``failures``, by binding, are the calls that cannot be."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.failures: dict[Binding, Failure] = {}
        self.scope: Scope = {}
        self.under_way: list[str] = []

    def inputs(self, graph: Graph) -> list[Symbol]:
        """Return the inputs of main, which become those of the graph."""
        for param in self.module.main.params:
            self.scope[param] = _values(param.type, partial(graph.input, param.name))
        return _leaves(tuple(self.scope.values()))

    def main(self, graph: Graph) -> list[Symbol]:
        """Return the results of main; what they are, where there are failures, does not count."""
        return _leaves(self.run(graph, self.module.main.body, self.scope))

    def run(self, graph: Graph, block: Block, scope: Scope) -> Any:
        """Write a block in a graph; return its result."""
        with use(graph):
            for binding in block.bindings:
                scope[binding.var] = self.binding(graph, binding, scope)
            return _atom(graph, block.result, scope)

    def binding(self, graph: Graph, binding: Binding, scope: Scope) -> Any:
        value, op = binding.value, None
        args: tuple[Any, ...] = ()
        try:
            if isinstance(value, Call):
                args = tuple(_atom(graph, a, scope) for a in value.args)
                op, type_ = base_op(value.callee), binding.var.type
                pairs = zip(args, value.args, strict=True)
                if _any_failed(*(a for a, own in pairs if isinstance(own, Expr))):
                    return _failed(graph, type_)
                if op is not None:
                    assert type_ is not None
                    return graph.call(op, args, type_)
                if isinstance(value.callee, GlobalVar):
                    return self.function(graph, value.callee.name, args)
            if isinstance(value, TupleGetItem):
                return _atom(graph, value.value, scope)[value.index]
            if isinstance(value, If):
                return self.choice(graph, value, scope, binding.var.type)
            if isinstance(value, Var | Constant | Tuple):
                return _atom(graph, value, scope)
            raise Unconvertible(NO_FORM)
        except Unconvertible as error:
            name = op.name if op is not None else type(value).__name__.lower()
            why = error.why if op is None else f"{_call_text(op, args)}: {error.why}"
            place = "" if binding.span is None else str(binding.span)
            self.failures[binding] = Failure(name, why, error.hint, place)
            return _failed(graph, binding.var.type)

    def function(self, graph: Graph, name: str, args: tuple[Any, ...]) -> Any:
        """Write a function's body, or the loop that it is."""
        function = self.module.functions[name]
        for param, value in zip(function.params, args, strict=True):
            pairs = zip(leaf_types(param.type or TupleType(())), _leaves(value), strict=False)
            if any(_names_differ(declared, x) for declared, x in pairs):
                why = f"the sizes of %{param.name} have other names in the function {name!r}"
                raise Unconvertible(why, "give sizes the names that they have in main")
        loop = _loop_of(name, function)
        if loop is not None:
            return self.loop(graph, function, *loop, args)
        if name in self.under_way:
            raise Unconvertible(f"the function {name!r} calls itself, and is no loop")
        self.under_way.append(name)
        try:
            return self.run(graph, function.body, dict(zip(function.params, args, strict=True)))
        finally:
            self.under_way.pop()

    def choice(self, graph: Graph, value: If, scope: Scope, type_: Type | None) -> Any:
        """Write an `If`: its branches see the values around."""
        condition, branches = _atom(graph, value.condition, scope), []
        for name, block in (("then", value.then_block), ("else", value.else_block)):
            inner = Graph(graph.opset, graph.export, graph)
            results = _leaves(self.run(inner, block, dict(scope)))
            if _any_failed(condition, *results):
                return _failed(graph, type_)
            branches.append(inner.proto(name, (), results))
        assert type_ is not None
        types = tuple(leaf_types(type_))
        then, other = branches
        made = graph.node("If", condition, type=types, then_branch=then, else_branch=other)
        found = iter(made)
        return _values(type_, lambda _: next(found))

    def loop(
        self, graph: Graph, function: Function, choice: If, goes_on: bool, args: tuple[Any, ...]
    ) -> Any:
        """Write a loop: it carries the parameters that a step changes."""
        params, before = function.params, Block(function.body.bindings[:-1], choice.condition)
        again, done = choice.then_block, choice.else_block
        if not goes_on:
            again, done = done, again
        step, last = again.bindings[:-1], again.bindings[-1].value
        assert isinstance(last, Call)
        changed = [i for i, (p, a) in enumerate(zip(params, last.args, strict=True)) if a is not p]
        scope: Scope = dict(zip(params, args, strict=True))

        def condition(where: Graph, at: Scope) -> Any:
            found = self.run(where, before, at)
            if found is FAILED or goes_on:
                return found
            with use(where):
                return operators.logical_not(found)

        def state(at: Sequence[Any]) -> list[Any]:
            return [x for i in changed for x in _leaves(at[i])]

        first = condition(graph, dict(scope))
        body = Graph(graph.opset, graph.export, graph)
        inside = dict(scope)
        for i in changed:
            inside[params[i]] = _values(params[i].type, partial(body.value, params[i].name))
        entered = [body.value("step", TensorType((), "int64")),
                   body.value("goes_on", TensorType((), "bool"))]  # fmt: skip
        carried = state([inside[p] for p in params])
        self.run(body, before, inside)
        new = self.run(body, Block(step, Tuple(tuple(last.args))), inside)
        following = dict(zip(params, new, strict=True))
        more = condition(body, dict(following))
        results = [more, *state(new)]
        if _any_failed(first, *results):
            return _failed(graph, function.result_type)
        proto = body.proto("body", (*entered, *carried), results)
        types = tuple(x.type for x in carried)
        found = iter(graph.node("Loop", None, first, *state(args), type=types, body=proto))
        for i in changed:
            scope[params[i]] = _values(params[i].type, lambda _: next(found))
        return self.run(graph, Block((*before.bindings, *done.bindings), done.result), scope)


def _loop_of(name: str, function: Function) -> tuple[If, bool] | None:
    """Return the last choice of a function that calls itself at the end of one of its branches,
    and nowhere else, and whether that is where the condition is true; None for another function.
    """
    if not function.body.bindings or function.body.result is not function.body.bindings[-1].var:
        return None
    *before, last = function.body.bindings
    choice = last.value
    if not isinstance(choice, If):
        return None
    for block, other in ((choice.then_block, choice.else_block),
                         (choice.else_block, choice.then_block)):  # fmt: skip
        if not block.bindings or block.result is not block.bindings[-1].var:
            continue
        rest = (*before, *block.bindings[:-1], *other.bindings)
        if _calls(block.bindings[-1], name) and not any(_refers(b, name) for b in rest):
            return choice, block is choice.then_block
    return None


def _names_differ(declared: Type, x: Any) -> bool:
    """Whether a function has a name for an extent that is another one where it is called."""
    return isinstance(declared, TensorType) and any(
        isinstance(d, SymbolicDim) and d != own
        for d, own in zip(declared.shape, x.shape, strict=True)
    )


def _calls(binding: Binding, name: str) -> bool:
    value = binding.value
    return isinstance(value, Call) and getattr(value.callee, "name", "") == name and isinstance(
        value.callee, GlobalVar)  # fmt: skip


def _refers(binding: Binding, name: str) -> bool:
    inner = (b for block in inner_blocks(binding.value) for b in block.bindings)
    return _calls(binding, name) or any(_refers(b, name) for b in inner)


def _atom(graph: Graph, atom: Any, scope: Mapping[Var, Any]) -> Any:
    """Return what stands for an atom; a Python value, which may be an argument, itself."""
    match atom:
        case Var():
            return scope[atom]
        case Constant():
            return graph.constant(atom.data)
        case Tuple():
            return tuple(_atom(graph, f, scope) for f in atom.fields)
        case Expr():
            raise Unconvertible(NO_FORM)
    return atom


def _leaves(value: Any) -> list[Any]:
    return [x for v in value for x in _leaves(v)] if isinstance(value, tuple) else [value]


def _any_failed(*values: Any) -> bool:
    return any(x is FAILED for v in values for x in _leaves(v))


def _values(type_: Type | None, make: Callable[[TensorType], Any]) -> Any:
    """Return a value of a type, its tensors made one after another."""
    if isinstance(type_, TupleType):
        return tuple(_values(f, make) for f in type_.fields)
    return make(type_) if isinstance(type_, TensorType) else FAILED


def _failed(graph: Graph, type_: Type | None) -> Any:
    """Return what stands for the results of a call that has no form, for the calls that use it."""
    return _values(type_, partial(graph.value, "failed"))


def _call_text(op: Any, args: tuple[Any, ...]) -> str:
    return call_text(op, map_tensors(op, args, lambda s: s.type))
