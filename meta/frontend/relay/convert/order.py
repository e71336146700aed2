"""`Order`: what each scope of a Relay function evaluates, and in which order.

A Relay expression is a DAG. A node is evaluated once, in the innermost scope (a function's body, a
branch, the arm of a match) that is around all of its uses, at the place where evaluation from left
to right meets it first. Everything here is linear in the size of the DAG and does not recurse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.subexpressions import pattern_variables

LEAVES = (ast.Var, ast.GlobalVar, ast.Op, ast.Constructor, ast.Constant)
"""Expressions that are not evaluated but looked up."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A step that binds the variable of a let to its value, which is computed by then."""

    let: ast.Let


@dataclass(eq=False, slots=True)
class Scope:
    """A function's body, a branch or an arm.

    Attributes
    ----------
    result: the expression whose value is the scope's. parent: the scope around it.
    steps: what is evaluated in it, in order; a `Let` as a step stands for its body's value.
    variables: what it binds itself: parameters, and the variables of a pattern.
    free: what it and the scopes inside use of the scopes around it; see `Order.free`.
    """

    result: ast.Expr
    parent: Scope | None
    depth: int
    variables: tuple[ast.Var, ...] = ()
    steps: list[ast.Expr | Bind] = field(default_factory=list)
    inner: list[Scope] = field(default_factory=list)
    free: tuple[ast.Expr, ...] | None = None


class Order:
    """The scopes of a function.

    Attributes
    ----------
    root: the scope of its body. scopes: the inner scopes of each `If`, `Function` and `Match`.
    nodes: every expression that is no leaf, operands first.
    uses: how often each expression and variable is used. called: those that a call calls.
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
            self._place[operand] = used_in if known is None else _around(known, used_in)

    def free(self, scope: Scope) -> tuple[ast.Expr, ...]:
        """Return the variables and expressions that a scope takes from those around it, in order of
        use.
        """
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


def _around(a: Scope, b: Scope) -> Scope:
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
    stack: list[ast.Expr | Bind | _Done] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, _Done):
            found.append(node.node)
        elif isinstance(node, Bind):
            found.append(node)
        elif node not in seen and not isinstance(node, LEAVES):
            seen.add(node)
            stack.append(_Done(node))
            if isinstance(node, ast.Let):
                stack += (node.body, Bind(node), node.value)
            else:
                stack += reversed([operand for operand, _ in _operands(node)])
    return found


@dataclass(frozen=True, slots=True)
class _Done:
    node: ast.Expr


def _operands(node: ast.Expr) -> Iterator[tuple[ast.Expr, int | None]]:
    """Yield what a node uses, and in which of its inner scopes; None for its own."""
    match node:
        case ast.Call():
            yield node.op, None
            for arg in node.args:
                yield arg, None
        case ast.Tuple():
            for item in node.fields:
                yield item, None
        case ast.TupleGetItem() | ast.RefCreate():
            yield node.value, None
        case ast.RefRead():
            yield node.ref, None
        case ast.RefWrite():
            yield node.ref, None
            yield node.value, None
        case ast.Let():
            yield node.value, None
            yield node.body, None
        case ast.If():
            yield node.condition, None
            yield node.then_branch, 0
            yield node.else_branch, 1
        case ast.Function():
            yield node.body, 0
        case ast.Match():
            yield node.value, None
            for i, clause in enumerate(node.clauses):
                yield clause.body, i


def _inner_scopes(node: ast.Expr, around: Scope) -> Iterator[Scope]:
    depth = around.depth + 1
    if depth > ast.MAX_NESTING:
        raise RelayError(
            f"functions, branches and match arms are nested more than {ast.MAX_NESTING} deep",
            place=str(node.place) if node.place is not None else None,
        )
    match node:
        case ast.If():
            yield Scope(node.then_branch, around, depth)
            yield Scope(node.else_branch, around, depth)
        case ast.Function():
            yield Scope(node.body, around, depth, node.params)
        case ast.Match():
            for clause in node.clauses:
                yield Scope(clause.body, around, depth, tuple(pattern_variables(clause.pattern)))
