"""`RelayProgram`, a Relay module with what is found out about it once, for all conversions:
`Order`, what each scope of a function evaluates, and in which order; and `unsupported`, everything
that keeps a program from being converted, before it is tried.

A Relay expression is a DAG. A node is evaluated once, in the innermost scope (a function's body, a
branch, the arm of a match) that is around all of its uses, at the place where evaluation from left
to right meets it first. Ordering is linear in the size of the DAG and does not recurse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import meta.frontend.relay.converters  # noqa: F401  (registers them)
from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.frontend.core import Failure, Unconvertible, conversion_error
from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import ndarray

LEAVES = (ast.Var, ast.GlobalVar, ast.Op, ast.Constructor, ast.Constant)
"""Expressions that are not evaluated but looked up."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A step that binds the variable of a let to its value, which is computed by then."""

    let: ast.Let


@dataclass(eq=False, slots=True)
class Scope:
    """A function's body, a branch or an arm.

    ``steps``: what is evaluated in it, in order; a `Let` stands for its body's value.
    ``variables``: what it binds itself, parameters and those of a pattern.
    """

    result: ast.Expr
    parent: Scope | None
    depth: int
    variables: tuple[ast.Var, ...] = ()
    steps: list[ast.Expr | Bind] = field(default_factory=list)
    inner: list[Scope] = field(default_factory=list)
    free: tuple[ast.Expr, ...] | None = None


class Order:
    """The scopes of a function: ``root``, and by `If`, `Function` and `Match` the inner ones.

    ``nodes``: every expression that is no leaf, operands first. ``called``: what a call calls.
    """

    def __init__(self, function: ast.Function) -> None:
        self.root = Scope(function.body, None, 0, function.params)
        self.scopes: dict[ast.Expr, tuple[Scope, ...]] = {}
        self.uses: Counter[ast.Expr] = Counter([function.body])
        self.called: set[ast.Expr] = set()
        sequence = _postorder(function.body)
        self.nodes = [step for step in sequence if not isinstance(step, Bind)]
        self._place = {function.body: self.root}
        for node in reversed(self.nodes):
            self._place_operands(node)
        for step in sequence:
            node = step.let if isinstance(step, Bind) else step
            self._place[node].steps.append(step)

    def _place_operands(self, node: ast.Expr) -> None:
        """Place what a node uses, whose own scope is known: all of its users came before."""
        scope = self._place[node]
        self.scopes[node] = inner = tuple(_inner_scopes(node, scope))
        scope.inner += inner
        if isinstance(node, ast.Call):
            self.called.add(node.op)
        for operand, slot in _operands(node):
            self.uses[operand] += 1
            used_in = scope if slot is None else inner[slot]
            known = self._place.get(operand)
            self._place[operand] = used_in if known is None else _common_scope(known, used_in)

    def free(self, scope: Scope) -> tuple[ast.Expr, ...]:
        """Return what a scope takes from those around it, in order of use."""
        if scope.free is None:
            used: dict[ast.Expr, None] = {}
            own: set[ast.Expr] = set()
            stack = [scope]
            while stack:
                inner = stack.pop()
                stack += inner.inner
                own.update(inner.variables)
                used[inner.result] = None
                for step in inner.steps:
                    if isinstance(step, Bind):
                        own.add(step.let.var)
                        used[step.let.value] = None
                        continue
                    own.add(step)
                    used.update((operand, None) for operand, _ in _operands(step))
            bound = LEAVES[1:]
            scope.free = tuple(e for e in used if e not in own and not isinstance(e, bound))
        return scope.free


def _common_scope(a: Scope, b: Scope) -> Scope:
    """Return the innermost scope that is around both."""
    while a is not b:
        if a.depth >= b.depth:
            assert a.parent is not None
            a = a.parent
        else:
            assert b.parent is not None
            b = b.parent
    return a


def _postorder(root: ast.Expr) -> list[ast.Expr | Bind]:
    """Return each expression after what it uses, in the order of evaluation."""
    found: list[ast.Expr | Bind] = []
    seen: set[ast.Expr] = set()
    stack: list[tuple[ast.Expr | Bind, bool]] = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done or isinstance(node, Bind):
            found.append(node)
        elif node not in seen and not isinstance(node, LEAVES):
            seen.add(node)
            stack.append((node, True))
            needed = [operand for operand, _ in _operands(node)]
            if isinstance(node, ast.Let):
                stack += ((node.body, False), (Bind(node), True))
                needed = [node.value]
            stack += ((operand, False) for operand in reversed(needed))
    return found


def _operands(node: ast.Expr) -> list[tuple[ast.Expr, int | None]]:
    """Return what a node uses, and in which of its inner scopes; None for its own."""
    inner = [(body, i) for i, (_, body) in enumerate(ast.scopes(node))]
    return [*((operand, None) for operand in ast.operands(node)), *inner]


def _inner_scopes(node: ast.Expr, around: Scope) -> Iterator[Scope]:
    depth = around.depth + 1
    if depth > ast.MAX_NESTING:
        raise RelayError(
            f"functions, branches and match arms are nested more than {ast.MAX_NESTING} deep",
            place=node.place,
        )
    for variables, body in ast.scopes(node):
        yield Scope(body, around, depth, variables)


HINTS = frozenset({"Inline", "Primitive", "Composite", "Compiler"})
"""Attributes of functions that partition a program for a compiler. Such a function is inlined where
it calls no other: `meta` fuses by itself.
"""


class RelayProgram:
    """A Relay module and the order of its evaluation; copies of a model share it."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self._orders: dict[str, Order] = {}
        self._constants: dict[ast.Constant, ndarray] = {}

    def __deepcopy__(self, _: object) -> RelayProgram:
        return self

    @property
    def main(self) -> ast.Function:
        """The entry point; RelayError if there is none."""
        return self.function("main")

    def function(self, name: str) -> ast.Function:
        """Return a global function; RelayError if there is none."""
        found = self.module.functions.get(name)
        if found is None:
            raise RelayError(
                f"the program has no function @{name}", hint=nearest(name, self.module.functions)
            )
        return found

    def order(self, name: str) -> Order:
        """Return the order of evaluation of a global function."""
        if name not in self._orders:
            self._orders[name] = Order(self.function(name))
        return self._orders[name]

    def inlines(self, name: str) -> bool:
        """Whether calls are replaced by the body: of a compiler's hint, or if used once."""
        if is_hint(self.function(name).attrs, self.order(name).root):
            return True
        return self._uses[name] == 1 and name not in self._callees(name)

    def _callees(self, name: str) -> Counter[str]:
        """Return how often a function names each global function."""
        uses: Counter[str] = Counter()
        for node, count in self.order(name).uses.items():
            if isinstance(node, ast.GlobalVar):
                uses[node.name] += count
        return uses

    @cached_property
    def _uses(self) -> Counter[str]:
        return sum(map(self._callees, self.reached), Counter(["main"]))

    @cached_property
    def reached(self) -> tuple[str, ...]:
        """The global functions that main may call, itself included, in the module's order."""
        found: set[str] = set()
        stack = ["main"]
        while stack:
            name = stack.pop()
            if name not in found and name in self.module.functions:
                found.add(name)
                stack += self._callees(name)
        return tuple(name for name in self.module.functions if name in found)

    def calls(self) -> Iterator[ast.Call]:
        """Yield the calls of operators in what main may call, function by function."""
        for name in self.reached:
            for node in self.order(name).nodes:
                if isinstance(node, ast.Call) and isinstance(node.op, ast.Op):
                    yield node

    def constant(self, node: ast.Constant) -> ndarray:
        """Return a constant's array; RelayError if the file does not hold it."""
        found = self._constants.get(node)
        if found is None:
            if node.value is None:
                raise RelayError(
                    f"the file does not hold the value of {node.missing or 'a constant'}",
                    place=node.place,
                    hint="print the module with its metadata (mod.astext()), or save it as JSON",
                )
            try:
                found = self._constants[node] = ndarray(node.value.contiguous())
            except ArgumentError as error:
                what = f"a constant cannot be used: {error.what}"
                raise RelayError(what, place=node.place) from error
        return found


def is_hint(attrs: Mapping[str, Any], scope: Scope) -> bool:
    """Whether a function only says what a compiler takes together, and calls operators alone."""
    if HINTS.isdisjoint(attrs) or scope.inner:
        return False
    calls = [step for step in scope.steps if isinstance(step, ast.Call)]
    return all(isinstance(call.op, ast.Op) for call in calls)


def unsupported(program: RelayProgram) -> list[Failure]:
    """Return what of main cannot be converted, as far as it is known before tracing."""
    found = []

    def add(name: str, why: str, hint: str | None, node: ast.Expr) -> None:
        place = str(node.place or "").removeprefix(program.module.source).lstrip(":, ")
        found.append(Failure(name, why, hint, place))

    for call in program.calls():
        assert isinstance(call.op, ast.Op)
        try:
            relay.require(call.op.name, {} if call.attrs is None else call.attrs.fields)
        except Unconvertible as error:
            add(call.op.name, error.why, error.hint, call)
    for name in program.reached:
        for leaf in program.order(name).uses:
            if isinstance(leaf, ast.Constant):
                try:
                    program.constant(leaf)
                except RelayError as error:
                    add("a constant", error.what, error.hint, leaf)
    return found


def require_supported(program: RelayProgram) -> None:
    """Raise one RelayError that lists all of `unsupported`, if there is any."""
    found = unsupported(program)
    if found:
        raise conversion_error(found, partial(RelayError, place=program.module.source))
