"""Liveness: examples, and all runs of random programs as the oracle."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    If,
    Liveness,
    Tuple,
    TupleGetItem,
    Var,
    bindings,
    operands,
    parse,
)
from meta.ir.visit import inner_blocks
from tests.ir.programs import BARE


def names(variables: object) -> str:
    return " ".join(sorted(v.name for v in variables))


def lives(text: str, views: dict[str, str] | None = None) -> list[str]:
    """Return, per binding in the order of the text, what is live after it."""
    function = parse(text).main
    by_name = {v.name: v for v in [*function.params, *(b.var for b in bindings(function))]}
    shares = {by_name[k]: [by_name[v]] for k, v in (views or {}).items()}
    found = Liveness(function, shares)
    blocks = [function.body, *(i for b in bindings(function) for i in inner_blocks(b.value))]
    after = {b: names(live) for block in blocks for b, live in found.walk(block)}
    return [f"{b.var.name}: {after[b]}" for b in bindings(function)]


def test_a_straight_line() -> None:
    text = """
    func @main(%x, %y) {
      %a = test_add(%x, %y)
      %b = test_add(%a, %y)
      %c = test_add(%x, %b)
      %d = test_add(%a, %a)
      return %c
    }"""
    assert lives(text) == ["a: a x y", "b: a b x", "c: a c", "d: c"]
    assert lives(text, {"b": "a"}) == ["a: a x y", "b: a b x", "c: a c", "d: c"]
    assert lives(text, {"c": "y"}) == ["a: a x y", "b: a b x y", "c: a c y", "d: c y"]


def test_tuples_keep_their_fields_and_fields_only_what_they_are() -> None:
    text = """
    func @main(%x, %y) {
      %t = (%x, %y)
      %a = %t.1
      %b = test_add(%a, %a)
      return %b
    }"""
    assert lives(text) == ["t: t x y", "a: a y", "b: b"]


def test_conditionals() -> None:
    text = """
    func @main(%p, %x, %y, %z) {
      %r = if %p {
        %a = test_add(%x, %x)
        yield %a
      } else {
        %b = test_add(%y, %y)
        %c = test_add(%b, %b)
        yield %y
      }
      %d = test_add(%z, %r)
      return %d
    }"""
    assert lives(text) == ["r: a r y z", "a: a z", "b: b y z", "c: y z", "d: d"]


def test_closures_keep_what_they_close_over() -> None:
    text = """
    func @main(%x, %y) {
      %f = fn(%a) {
        %b = test_add(%a, %x)
        return %b
      }
      %c = %f(%y)
      %d = %f(%c)
      return %d
    }"""
    assert lives(text) == ["f: f x y", "b: b x", "c: c f x", "d: d"]


def test_what_dies_where() -> None:
    function = parse("func @main(%x, %y) { %a = test_add(%x, %y) %b = test_add(%x, %x) return %x }")
    main = function.main
    found = Liveness(main)
    a, b = main.body.bindings
    assert (names(found.dying(a)), names(found.dying(b))) == ("a y", "b")
    assert names(found.dying(main.body)) == "x"
    assert names(found.before(main.body)) == "x y"


Event = tuple[Binding | Block, set[Var], set[Var], set[Var]]
"""Where it happens, what is used, what is defined, and what shares its memory with the latter."""


@st.composite
def functions(draw: st.DrawFn) -> tuple[Function, dict[Var, list[Var]]]:
    """Draw a function with conditionals, tuples, fields and views, and what is a view of what."""
    params = tuple(Var(f"p{i}") for i in range(2))
    views: dict[Var, list[Var]] = {}
    count = iter(range(1000))

    def block(scope: list[Var], depth: int) -> Block:
        scope, made = list(scope), []
        for _ in range(draw(st.integers(0, 4))):
            atom = st.sampled_from(scope[-5:])
            var = Var(f"v{next(count)}")
            kinds = ["call", "call", "view", "tuple", "name", "field"] + ["if"] * (depth < 2)
            value: Expr
            match draw(st.sampled_from(kinds)):
                case "tuple":
                    value = Tuple((draw(atom), draw(atom)))
                case "name":
                    value = draw(atom)
                case "field":
                    value = TupleGetItem(draw(atom), draw(st.integers(0, 1)))
                case "if":
                    sides = (block(scope, depth + 1) for _ in range(2))
                    value = If(draw(atom), *sides)
                case kind:
                    value = Call(BARE, (draw(atom), draw(atom)))
                    if kind == "view":
                        views[var] = [value.args[0]]
            made.append(Binding(var, value))
            scope.append(var)
        return Block(tuple(made), draw(st.sampled_from(scope[-3:])))

    return Function(params, block(list(params), 0)), views


def runs(block: Block, views: dict[Var, list[Var]], outcome: Var | None) -> Iterator[list[Event]]:
    """Yield what happens, for every choice of every conditional."""
    every: list[list[Event]] = [[]]
    for binding in block.bindings:
        value = binding.value
        used = {a for a in operands(value) if isinstance(a, Var)}
        tails: list[list[Event]]
        if isinstance(value, If):
            sides = (value.then_block, value.else_block)
            tails = [
                [(binding, used, set(), set()), *inner]
                for side in sides
                for inner in runs(side, views, binding.var)
            ]
        else:
            shared = set(views.get(binding.var, ()))
            if isinstance(value, Var | Tuple | TupleGetItem):
                shared = used
            tails = [[(binding, used, {binding.var}, shared)]]
        every = [[*head, *tail] for head in every for tail in tails]
    result = {a for a in operands(block.result) if isinstance(a, Var)}
    bound = set() if outcome is None else {outcome}
    for events in every:
        yield [*events, (block, result, bound, result)]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(functions())
def test_live_is_what_some_run_needs_later(drawn: tuple[Function, dict[Var, list[Var]]]) -> None:
    function, views = drawn
    # A field of a tuple that is known shares with that field alone.
    tuples = {b.var: b.value for b in bindings(function) if isinstance(b.value, Tuple)}
    every = list(runs(function.body, views, None))
    if len(every) > 100:
        return
    needed: dict[Binding | Block, set[Var]] = {}
    for events in every:
        shares: dict[Var, set[Var]] = {}
        for at, _, defined, shared in events:
            for var in defined:
                known = isinstance(at, Binding) and isinstance(at.value, TupleGetItem)
                owner = tuples.get(at.value.value) if known else None
                field = {owner.fields[at.value.index]} if owner is not None else shared
                shares[var] = {var}.union(*(shares.get(s, {s}) for s in field))
        live: set[Var] = set()
        for at, used, defined, _ in reversed(events):
            needed.setdefault(at, set()).update(live)
            live -= defined
            for var in used:
                live |= shares.get(var, {var})
    found = Liveness(function, views)
    blocks = [function.body, *(i for b in bindings(function) for i in inner_blocks(b.value))]
    for block in blocks:
        for binding, after in found.walk(block):
            sides = inner_blocks(binding.value)  # a conditional's value is there at a side's end
            expected = set().union(*(needed.get(at, set()) for at in sides or (binding,)))
            assert after == expected, f"{binding}\n{function}"
