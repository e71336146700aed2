"""Random programs and patterns: the search against enumeration; results stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from itertools import product
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta import op
from meta.base.errors import ArgumentError
from meta.ir import (
    Binding,
    Block,
    Call,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleType,
    Var,
    operands,
    verify,
)
from meta.passes.pattern import Pattern, match, partition, pattern, rewrite
from tests.passes.fused_programs import run_on_torch

TYPE = TensorType((2, 2), "float64")
UNARY = (op.relu, op.negative, op.reshape)
BINARY = (op.add, op.multiply, op.subtract)
COMMUTES = {op.add, op.multiply}

# A pattern as plain data: a capture's letter, ("or", a, b), (operator, *arguments), or
# ("several", *results).
Trees = st.SearchStrategy[Any]


def calls(inner: Trees) -> Trees:
    unary, binary = st.sampled_from(UNARY), st.sampled_from(BINARY)
    return st.tuples(unary, inner) | st.tuples(binary, inner, inner)


plain_trees = st.recursive(st.sampled_from("xyz"), calls, max_leaves=5)
trees = st.recursive(
    st.sampled_from("xyz"),
    lambda inner: calls(inner) | st.tuples(st.just("or"), inner, inner),
    max_leaves=5,
)
plain_roots, roots = calls(plain_trees), calls(trees)


def call(operator: Any, *args: Any) -> Any:
    return operator(*args, (2, 2)) if operator is op.reshape else operator(*args)


def build(tree: Any, captures: dict[str, Any]) -> Any:
    """Write a tree as operator calls."""
    if isinstance(tree, str):
        return captures[tree]
    first, *rest = (t if i == 0 else build(t, captures) for i, t in enumerate(tree))
    if first == "several":
        return tuple(rest)
    return rest[0] | rest[1] if first == "or" else call(first, *rest)


def letters(tree: Any) -> set[str]:
    if isinstance(tree, str):
        return {tree}
    return set().union(*(letters(t) for t in tree[1:]))


def written(tree: Any) -> Callable[..., Any]:
    """Return a function with a parameter for each letter of a tree."""

    def function(**captures: Any) -> Any:
        return build(tree, captures)

    parameters = [Parameter(n, Parameter.KEYWORD_ONLY) for n in sorted(letters(tree))]
    function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return function


def made(tree: Any) -> Pattern:
    return pattern(written(tree))


@st.composite
def programs(draw: st.DrawFn, writes: bool) -> Module:
    """Draw a straight line of operators, some of which may write in place or share memory."""
    params = [Var(name, TYPE) for name in "abc"]
    scope, bindings = list(params), []
    for number in range(draw(st.integers(2, 9))):
        atom = st.sampled_from(scope[-5:])
        operator = draw(st.sampled_from((*UNARY, *BINARY) + (op.sgd,) * writes))
        if operator is op.sgd:
            args = (*(draw(atom) for _ in range(3)), 0.5, 0.5)
            bindings.append(Binding(Var("", TupleType(())), Call(operator, args)))
            continue
        count = 2 if operator in BINARY else 1
        given = tuple(draw(atom) for _ in range(count))
        rest = operator.schema.defaults[count:]
        if operator is op.reshape:
            rest = ((2, 2), *rest[1:])
        var = Var(f"v{number}", TYPE)
        bindings.append(Binding(var, Call(operator, (*given, *rest))))
        scope.append(var)
    results = tuple(draw(st.lists(st.sampled_from(scope), min_size=1, max_size=2)))
    module = Module({"main": Function(tuple(params), Block(tuple(bindings), Tuple(results)))})
    verify(module)
    return module


Solution = tuple[dict[str, Var], frozenset[Binding]]


def solutions(tree: Any, var: Var, defined: dict[Var, Binding]) -> Iterator[Solution]:
    """Yield, by enumeration, the captures and members of every way in which a variable fits."""
    if isinstance(tree, str):
        yield {tree: var}, frozenset()
        return
    if tree[0] == "or":
        yield from solutions(tree[1], var, defined)
        yield from solutions(tree[2], var, defined)
        return
    binding = defined.get(var)
    if binding is None or binding.value.callee is not tree[0]:  # type: ignore[attr-defined]
        return
    args = [a for a in binding.value.args if isinstance(a, Var)]  # type: ignore[attr-defined]
    for order in (args, args[::-1]) if tree[0] in COMMUTES else (args,):
        found = (list(solutions(t, a, defined)) for t, a in zip(tree[1:], order, strict=True))
        for parts in product(*found):
            captures: dict[str, Var] = {}
            for part, _ in parts:
                if any(captures.get(k, v) is not v for k, v in part.items()):
                    break
                captures.update(part)
            else:
                yield captures, frozenset({binding}.union(*(m for _, m in parts)))


@settings(max_examples=150)
@given(programs(writes=False), roots, st.booleans())
def test_the_search_finds_what_enumeration_finds(module: Module, tree: Any, shared: bool) -> None:
    main = module.main
    defined = {b.var: b for b in main.body.bindings}
    found = {one.root: one for one in match(made(tree), main, shared=shared)}
    taken: set[Binding] = set()
    for binding in reversed(main.body.bindings):
        outside = {m for m in main.body.bindings if m not in taken}
        allowed = [
            (captures, members)
            for captures, members in solutions(tree, binding.var, defined)
            if members <= outside and (shared or closed(members, binding, main))
        ]
        assert (binding in found) is (binding in outside and bool(allowed))
        if binding in found:
            one = found[binding]
            captures = {k: v for k, v in one.captures.items() if v is not None}
            assert (captures, frozenset(one.members)) in allowed
            taken |= one.replaced


def closed(members: frozenset[Binding], root: Binding, main: Function) -> bool:
    """Tell whether nothing else uses what the members compute, but for the root; a view of what
    stays may be used.
    """
    others = [b.value for b in main.body.bindings if b not in members]
    used = {a for e in (*others, main.body.result) for a in operands(e)}
    gone: set[Any] = set()
    for member in [b for b in main.body.bindings if b in members and b is not root]:
        value: Any = member.value
        if member.var not in used:
            gone.add(member.var)
        elif value.callee is not op.reshape or value.args[0] in gone:
            return False
    return True


def sgd(x: torch.Tensor, dx: torch.Tensor, v: torch.Tensor, rate: float, mu: float) -> None:
    v.copy_(mu * v + dx)
    x.copy_(x - rate * v)


TORCH: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "negative": torch.neg,
    "reshape": lambda x, shape, _: x.reshape(shape),  # it shares memory
    "add": lambda x, y, *_: x + y,
    "subtract": lambda x, y, *_: x - y,
    "multiply": torch.mul,
    "sgd": sgd,
}


def state(module: Module) -> list[torch.Tensor]:
    """Return the results and what became of the arguments, copied when the run has ended."""
    args = [torch.arange(4.0, dtype=torch.float64).reshape(2, 2) - i for i in range(3)]
    return [t.clone() for t in (*run_on_torch(module, args, TORCH), *args)]


def unchanged(before: Module, after: Module) -> None:
    verify(after)
    for found, expected in zip(state(after), state(before), strict=True):
        assert torch.equal(found, expected), f"{before}\nbecame\n{after}"


@settings(max_examples=150)
@given(programs(writes=True), roots)
def test_partitioned_programs_compute_the_same(module: Module, tree: Any) -> None:
    unchanged(module, partition(module, made(tree)))


@st.composite
def programs_with_results(draw: st.DrawFn) -> tuple[Module, list[Any]]:
    """Draw a program and, as trees, what two or three of its variables are made of."""
    module = draw(programs(writes=True))
    defined = {b.var: b for b in module.main.body.bindings if b.var.type == TYPE}
    names: dict[Var, str] = {}

    def tree(var: Var, depth: int) -> Any:
        binding: Any = defined.get(var)
        if binding is None or depth == 0 or (depth < 3 and draw(st.booleans())):
            return names.setdefault(var, f"v{len(names)}")
        args = [a for a in binding.value.args if isinstance(a, Var)]
        return (binding.value.callee, *(tree(a, depth - 1) for a in args))

    some = st.sampled_from(list(defined) or list(module.main.params))
    return module, [tree(var, 3) for var in draw(st.lists(some, min_size=2, max_size=3))]


@settings(max_examples=300)
@given(programs_with_results())
def test_partitioned_patterns_of_several_results_compute_the_same(
    drawn: tuple[Module, list[Any]],
) -> None:
    module, results = drawn
    try:
        described = pattern(written(("several", *results)))
    except ArgumentError:
        return  # they have nothing in common, or one is no result of an operator
    unchanged(module, partition(module, described))


@settings(max_examples=150)
@given(programs(writes=True), plain_roots, st.booleans())
def test_rewritten_programs_compute_the_same(module: Module, tree: Any, shared: bool) -> None:
    """The replacement is what was matched, written once more."""
    unchanged(module, rewrite(module, made(tree), written(tree), shared=shared))
