"""Patterns are written by calling operators: a call builds a node of a pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NoReturn, overload

from meta.base.call_context import use
from meta.base.errors import ArgumentError
from meta.base.source import definition_span
from meta.ir import Expr
from meta.op.core import Op
from meta.passes.pattern.nodes import (
    Alternatives,
    Called,
    ConstantValue,
    Fields,
    LiteralValue,
    Node,
    Wildcard,
    as_node,
    called,
    named,
    walk_nodes,
)

Check = Callable[..., str | None]


def of_names(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that calls another one with those of some values that it takes, by name."""
    names = tuple(inspect.signature(function).parameters)
    return lambda values: function(**{name: values[name] for name in names})


@dataclass(frozen=True, eq=False)
class Pattern:
    """A described piece of a program.

    name: for messages, and for functions that are made of matches. results: what is computed.
    check: says why a match is refused, or None; see `pattern`.
    """

    name: str
    results: tuple[Node, ...]
    order: tuple[str, ...] = ()
    check: Check | None = None

    @cached_property
    def captures(self) -> dict[str, Node]:
        """The named nodes: parameters in their order, then the others in that of the pattern."""
        found = {node.name: node for node in walk_nodes(*self.results) if node.name}
        return {name: found[name] for name in (*self.order, *found) if name in found}

    @cached_property
    def check_of(self) -> Callable[[Mapping[str, Any]], str | None]:
        """The check, as a function of all values by their names."""
        assert self.check is not None
        return of_names(self.check)

    @cached_property
    def operators(self) -> frozenset[Op]:
        """Base operators that a program calls wherever it has a match."""
        return frozenset().union(*map(_operators, self.results))

    @cached_property
    def searched(self) -> tuple[Node, ...]:
        """The results in the order in which they are searched: first one that no other needs.

        Raises ArgumentError for a result that has no node in common with those before it.
        """
        inner = {p for one in self.results for p in walk_nodes(*one.inner)}
        waiting = list(self.results)
        order = [next(one for one in waiting if one not in inner)]
        waiting.remove(order[0])
        while waiting:
            known = set(walk_nodes(*order))
            near = [one for one in waiting if known.intersection(walk_nodes(one))]
            if not near:
                raise ArgumentError(
                    f"the results of the pattern {self.name} have nothing in common",
                    expected="results that are computed of the same values",
                )
            order.append(near[0])
            waiting.remove(near[0])
        return tuple(order)


@overload
def pattern(function: Callable[..., Any]) -> Pattern: ...
@overload
def pattern(
    function: None = None, *, check: Check | None = None
) -> Callable[[Callable[..., Any]], Pattern]: ...
def pattern(function: Callable[..., Any] | None = None, *, check: Check | None = None) -> Any:
    """Make a pattern of a function in operator call syntax; a decorator.

    The function's parameters are what the pattern captures: any value, or what the parameter's
    default says (`wildcard`, `constant`). What it returns is the result of what is searched, or a
    tuple of several results::

        @pattern
        def linear_relu(x, w, b, axis=wildcard()):
            return op.relu(op.bias_add(op.matmul(x, w), b, axis))

    - An argument that is left out is the operator's default, as in any call; ``...`` as the last
      one leaves all others open: ``op.conv2d.plain(x, w, ...)``.
    - A number in the place of a tensor is a constant of that value, however it is written.
    - A node that is used twice stands for one value. Commutative operators match either way.
    - Of several results each may be used by others; they have to be computed of common values.
    - ``a | b`` is either; what the other one captures is None. ``node[i]`` is a field of a tuple.
    - A base operator also matches what a dialect makes of it; ``op.torch.relu`` only itself.

    ``check`` takes captures by their names, and ``match``; a tensor is given by its type. It
    returns why a match is refused, or None.

    Raises ArgumentError for what is no pattern: an operator called with arrays, a result that is
    not computed, two nodes of one name.
    """
    if function is None:
        return partial(pattern, check=check)
    parameters = inspect.signature(function).parameters
    arguments = {}
    for name, parameter in parameters.items():
        given = Wildcard() if parameter.default is parameter.empty else parameter.default
        arguments[name] = named(name, as_node(given))
    with use(_call):
        made = function(**arguments)
        results = tuple(map(as_node, made if isinstance(made, tuple) and made else (made,)))
    for result in results:
        if isinstance(result, Wildcard | ConstantValue | Fields):
            found = type(result).__name__
            _refuse(function, "the result of a pattern is the result of an operator", found=found)
    if len(set(results)) < len(results):
        _refuse(function, "a result of the pattern is there twice")
    _check_names(results, tuple(parameters), function)
    name = function.__name__ if function.__name__.isidentifier() else "pattern"
    described = Pattern(name, results, tuple(parameters), check)
    assert described.searched, "checked here, not when it is first searched"
    return described


def operator(*ops: Expr, where: Callable[[Expr], bool] | None = None) -> Callable[..., Node]:
    """Return what is called like an operator in a pattern and stands for several.

    Either one of ``ops``, or one of which ``where`` is true: ``operator(op.relu, op.gelu)(x)``.
    """
    tests = [called(one) for one in ops]
    label = " or ".join(map(str, ops)) or "an operator with a property"

    def accepts(callee: Expr) -> bool:
        if where is not None and not where(callee):
            return False
        return not tests or any(test(callee) for test in tests)

    def build(*args: Any) -> Node:
        rest = bool(args) and args[-1] is ...
        given = args[:-1] if rest else args
        return Called(accepts, label, rest, inner=tuple(map(_argument, given)))

    return build


def _argument(value: Any) -> Node:
    if isinstance(value, bool | int | float | Node):
        return as_node(value)
    return LiteralValue(value)


def _call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """Build a node: what an operator call means while a pattern is made."""
    rest = bool(args) and args[-1] is ...
    args = args[:-1] if rest else args
    if rest:
        missing = [n for n in op.schema.names[len(args) :] if n not in kwargs]
        kwargs = {**kwargs, **{n: Wildcard() for n in missing}}
    values = op.schema.arrange(args, kwargs)
    nodes = tuple(_slot_node(op, s, v) for s, v in zip(op.schema.slots, values, strict=True))
    return Called(called(op), str(op), op=op if isinstance(op, Op) else None, inner=nodes)


def _slot_node(op: Op, slot: Any, value: Any) -> Node:
    """Return an argument as a node; ArgumentError for a value that the slot does not take."""
    if isinstance(value, Node):
        return value
    if slot.kind == "tensors" and isinstance(value, tuple | list):
        return Fields(inner=tuple(_slot_node(op, slot, v) for v in value))
    if slot.kind != "attribute" and isinstance(value, bool | int | float):
        return ConstantValue(value)
    return LiteralValue(op.schema.read(slot, value, partial(_no_array, op, slot)))


def _no_array(op: Op, slot: Any, value: Any) -> Any:
    raise ArgumentError(
        f"argument {slot.name!r} cannot stand in a pattern",
        op=op.name,
        expected="a parameter of the pattern, the result of an operator or a number",
        found=type(value).__name__,
    )


def _operators(node: Node) -> frozenset[Op]:
    """Return base operators that are called for whatever a node describes."""
    inner = [_operators(one) for one in node.inner]
    if isinstance(node, Alternatives):
        return frozenset.intersection(*inner)
    own = [node.op] if isinstance(node, Called) and node.op is not None else ()
    return frozenset(own).union(*inner)


def _refuse(function: Callable[..., Any], what: str, **details: str) -> NoReturn:
    raise ArgumentError(what, span=definition_span(function), **details)


def _check_names(
    results: tuple[Node, ...], parameters: tuple[str, ...], function: Callable[..., Any]
) -> None:
    owners: dict[str, Node] = {}
    for node in walk_nodes(*results):
        if node.name == "match":
            hint = "a check or replacement is given the match itself under this name"
            _refuse(function, "a node of a pattern cannot be named 'match'", hint=hint)
        if node.name and owners.setdefault(node.name, node) is not node:
            hint = "use one node twice, or give them two names"
            _refuse(function, f"two nodes of the pattern are named {node.name!r}", hint=hint)
    for name in parameters:
        if name not in owners:
            _refuse(function, f"the parameter {name!r} is no node of the pattern")
