"""A node kind is its declaration: one that is declared here prints, parses, compares, and so on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta.base.errors import IRError
from meta.dialect.core.ir_calls import has_effect, is_pure
from meta.ir import (
    PRIMITIVES,
    Binding,
    Block,
    DataType,
    Effect,
    Expr,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Var,
    binders,
    bindings,
    first_difference,
    free_vars,
    map_atoms,
    operands,
    parse,
    structural_equal,
    structural_hash,
    substitute,
    text,
    to_dot,
    to_html,
    type_of,
    verify,
    with_fresh_vars,
)
from meta.ir.fields import (
    Arguments,
    Atom,
    Atoms,
    Attributes,
    Body,
    Details,
    Index,
    NodeField,
    Parameters,
    ResultType,
    Word,
)
from meta.ir.node import SUFFIXES, WORDS, node
from meta.ir.verify import Verifier
from meta.ir.visit import inner_blocks
from meta.passes import eliminate_common_subexpressions
from tests.ir.programs import PLAIN_OPS, literals, types

F2 = TensorType((2,), "float32")


@node("test_pick{details}({first}, {rest}) with {body}{attrs}{type}")
@dataclass(eq=False, slots=True)
class Pick(Expr):
    """Has fields of most kinds, in another order than the text."""

    first: Annotated[Expr, Atom("the first choice")]
    rest: Annotated[tuple[Expr, ...], Atoms("choice")]
    body: Annotated[Block, Body()]
    details: Annotated[tuple[Any, ...], Details()]
    attrs: Annotated[dict[str, Any], Attributes()]
    type: Annotated[Type, ResultType()]

    def verify(self, verifier: Verifier) -> None:
        if self.details[1] > len(self.rest):
            verifier.fail(
                f"there is no choice {self.details[1]}", expected=f"0 to {len(self.rest)}"
            )


@node("test_log{message}{args}", effect=Effect.WRITE)
@dataclass(eq=False, slots=True)
class Log(Expr):
    """Has an effect, and no type of its own."""

    message: Annotated[tuple[Any, ...], Details()]
    args: Annotated[tuple[Any, ...], Arguments("argument")]

    def type_by(self, type_of: Any) -> Type | None:
        return TupleType(())


@node("test_loop {state} as {params} {body}")
@dataclass(eq=False, slots=True)
class Loop(Expr):
    """Binds variables."""

    state: Annotated[Expr, Atom("the state")]
    params: Annotated[tuple[Var, ...], Parameters()]
    body: Annotated[Block, Body("next")]

    def type_by(self, type_of: Any) -> Type | None:
        found: Type | None = type_of(self.state)
        return found


@node("test_half({value})")
@dataclass(eq=False, slots=True)
class Half(Expr):
    """Is pure."""

    value: Annotated[Expr, Atom("the value")]

    def type_by(self, type_of: Any) -> Type | None:
        found: Type | None = type_of(self.value)
        return found


OURS = ("test_pick", "test_log", "test_loop", "test_half")


@pytest.fixture(scope="module", autouse=True)
def kinds_of_this_file() -> Iterator[None]:
    """Leave none of them for other tests, which go through all kinds."""
    yield
    for word in OURS:
        del WORDS[word]


PROGRAM = """\
func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
  %0: float32[2] = test_pick "a b".1(%x, (%y, %x)) with {  # model.py:3
    %1: float32[2] = test_half(%y)
    yield %1
  } attrs(rate=0.5, "odd key"=(1,)) -> float32[2]
  %2: () = test_log "so \\"far\\""(%0, 1, (2.0, None))
  %3: float32[2] = test_loop %0 as (%a: float32[2], %b) {
    %4: float32[2] = test_half(%a)
    next %4
  }
  return %3
}"""


def parts() -> list[Expr]:
    return [b.value for b in parse(PROGRAM).main.body.bindings]


def test_print_and_parse() -> None:
    module = parse(PROGRAM)
    verify(module)
    assert text(module) == PROGRAM
    pick = module.main.body.bindings[0].value
    assert isinstance(pick, Pick)
    assert (pick.details, pick.type) == (("a b", 1), F2)
    assert pick.attrs == {"rate": 0.5, "odd key": (1,)}
    assert "test_half(_)" in to_dot(module) and ": body" in to_dot(module)
    assert '<span class="keyword">test_pick</span>' in to_html(module)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"a b".1', '"a c".1'),
        (".1(%x", ".0(%x"),
        ("(%x, (%y", "(%y, (%y"),
        ("(%y, %x)) with", "(%y, %y)) with"),
        ("(%y, %x)) with", "(%y,)) with"),
        ("test_half(%y)", "test_half(%x)"),
        ("rate=0.5", "rate=0.25"),
        ("attrs(rate=0.5, ", "attrs("),
        ("-> float32[2]\n  %2", "-> float32[?]\n  %2"),
        ("far", "fur"),
        ("(%0, 1, ", "(%0, 1.0, "),
        ("%b) {", "%b: int64[]) {"),
        ("next %4", "next %a"),
    ],
)
def test_comparison_sees_every_field(old: str, new: str) -> None:
    assert PROGRAM.count(old) == 1
    one, two = parse(PROGRAM), parse(PROGRAM.replace(old, new))
    assert not structural_equal(one, two) and first_difference(one, two) is not None
    assert structural_hash(one) != structural_hash(two)
    assert structural_equal(one, parse(PROGRAM.replace("%4", "%other")))


def test_visit() -> None:
    module = parse(PROGRAM)
    main = module.main
    x, y = main.params
    pick, log, loop = parts()
    assert [str(a) for a in operands(pick)] == ["%x", "%y", "%x"]
    assert [str(a) for a in operands(log)] == ["%0"]
    assert [len(inner_blocks(v)) for v in (pick, log, loop)] == [1, 0, 1]
    assert pick.stored == ()
    assert [b.var.name for b in bindings(main)] == ["0", "1", "2", "3", "4"]
    assert [v.name for v in binders(main)] == ["x", "y", "0", "1", "2", "3", "a", "b", "4"]
    assert free_vars(main) == [] and free_vars(main.body) == [x, y]
    z = Var("z", F2)
    assert free_vars(substitute(main.body, {x: z, y: z})) == [z]
    value = main.body.bindings[0].value
    assert map_atoms(value, lambda a: a) is value
    new = map_atoms(value, lambda a: z if a is x else a)
    assert isinstance(new, Pick) and isinstance(value, Pick)
    assert (new.first, new.rest, new.body, new.details) == (z, (y, z), value.body, ("a b", 1))
    copy = with_fresh_vars(main)
    assert structural_equal(copy, main) and not set(binders(copy)) & set(binders(main))
    assert type_of(parts()[0]) == F2 and type_of(log) == TupleType(())


X, FREE = Var("x", F2), Var("a", F2)
GIVEN = Block((), X)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Pick(X, (X,), GIVEN, ("p", 2), {}, F2), "there is no choice 2"),
        (Pick(FREE, (X,), GIVEN, ("p", 0), {}, F2), "the first choice, %a, is used before"),
        (Pick(X, (X, FREE), GIVEN, ("p", 0), {}, F2), "choice 1, %a, is used before"),
        (Pick(X, (Half(X),), GIVEN, ("p", 0), {}, F2), "choice 0 is a Half"),
        (Pick(X, (), Block((), FREE), ("p", 0), {}, F2), "the result, %a, is used before"),
        (Pick(X, (), GIVEN, ("p", 0), {"a": [1]}, F2), "the attribute 'a' is not a literal"),
        (Pick(X, (), GIVEN, ("p", 0), {}, DataType("T")), "there is no data type T"),
        (Pick(X, (), GIVEN, 1, {}, F2), "a field is a int"),  # type: ignore[arg-type]
        (Log(("m",), (X, object())), "argument 1 is a object"),
        (Loop(X, (X,), GIVEN), "%x is bound twice"),
        (Loop(FREE, (FREE,), GIVEN), "the state, %a, is used before"),
        (Half(Var("b", TensorType((3,), "float32"))), "the value, %b, is used before"),
    ],
)
def test_verify(value: Expr, what: str) -> None:
    with pytest.raises(IRError) as caught:
        verify(program(value))
    assert what in str(caught.value)


def program(value: Expr, result: Type | None = None) -> Module:
    var = Var("r", result)
    return Module({"main": Function((X,), Block((Binding(var, value),), var))})


def test_what_a_node_binds_is_in_scope_in_its_blocks_only() -> None:
    loop = Loop(X, (FREE,), Block((), FREE))
    verify(program(loop))
    one, two = Var("1"), Var("2")
    body = Block((Binding(one, loop), Binding(two, Half(FREE))), two)
    with pytest.raises(IRError, match="the value, %a, is used before it is bound or outside"):
        verify(Module({"main": Function((X,), body)}))


def test_a_type_that_follows_is_compared_with_the_declared_one() -> None:
    verify(program(Half(X), F2))
    with pytest.raises(IRError, match=r"the value has type float32\[2\]"):
        verify(program(Half(X), TensorType((3,), "float32")))


# Any node of any kind: values are drawn by the kinds of its fields.

NAMES = st.text(max_size=4) | st.sampled_from(["a", "if", "const"])
TYPES = st.sampled_from([F2, TupleType((F2,)), TensorType((), "bool")]) | types
ATOMS = st.recursive(
    st.just(X) | st.sampled_from(PLAIN_OPS),
    lambda inner: st.lists(inner, max_size=2).map(lambda fields: Tuple(tuple(fields))),
    max_leaves=3,
)
ALL_ATOMS = st.lists(ATOMS, max_size=3).map(tuple)
VALUES: dict[type[NodeField], st.SearchStrategy[Any]] = {
    Atom: ATOMS,
    Atoms: ALL_ATOMS,
    Arguments: st.lists(ATOMS | literals, max_size=3).map(tuple),
    Word: st.sampled_from(sorted(PRIMITIVES)),
    Details: st.just(()) | st.tuples(NAMES) | st.tuples(NAMES, st.integers(0, 99)),
    Index: st.integers(0, 99),
    ResultType: st.none() | TYPES,
    Parameters: st.lists(st.builds(Var, NAMES, st.none() | TYPES), max_size=2).map(tuple),
    Attributes: st.dictionaries(NAMES, literals, max_size=2),
    Body: st.builds(Block, st.just(()), ATOMS),
}


@st.composite
def nodes(draw: st.DrawFn) -> Expr:
    """Draw a node of any kind that has a form."""
    kinds = [*WORDS.values(), *SUFFIXES.values()]
    kind = draw(st.sampled_from(sorted(kinds, key=lambda k: k.__name__)))
    return kind(**{p.name: draw(VALUES[type(p.field)]) for p in kind.spec.fields})


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(nodes())
def test_every_kind_follows_its_declaration(value: Expr) -> None:
    module = program(value)
    again = parse(text(module))
    assert first_difference(module, again) is None
    assert structural_hash(module) == structural_hash(again)
    assert text(again) == text(module)
    assert structural_equal(with_fresh_vars(module.main), module.main)
    atoms = list(operands(value))
    assert map_atoms(value, lambda a: a) is value
    new = Var("new", F2)
    renamed = map_atoms(value, lambda a: new if a is X else a)
    assert list(operands(renamed)) == [new if a is X else a for a in atoms]
    assert set(value.stored) <= {*atoms, *(a for a in _tuples(value))}
    assert structural_equal(value, renamed) == (X not in atoms)
    to_dot(module)
    to_html(module)


def _tuples(value: Expr) -> list[Expr]:
    """Return the atoms of a node that are tuples, which `operands` takes apart."""
    assert value.spec.uses is not None
    return [a for a in value.spec.uses(value) if isinstance(a, Tuple)]


def test_passes_know_the_effect() -> None:
    twice = """\
func @main(%x: float32[2]) -> float32[2] {
  %0: float32[2] = test_half(%x)
  %1: float32[2] = test_half(%x)
  %2: () = test_log "once"(%0)
  %3: () = test_log "once"(%0)
  %4: float32[2] = add(%0, %1)
  return %4
}"""
    module = parse(twice)
    values = module.main.body.bindings
    assert [has_effect(b) for b in values] == [False, False, True, True, False]
    assert [is_pure(b) for b in values] == [True, True, False, False, True]
    names = [type(b.value).__name__ for b in bindings(eliminate_common_subexpressions(module).main)]
    assert names == ["Half", "Log", "Log", "Call"]


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ("test_half({value})", "Half begins with 'test_half' too"),
        ("if {value}", "If begins with 'if' too"),
        ("test_other", "does not have each field once"),
        ("test_other {value} {value}", "does not have each field once"),
        ("test_other {value} {more}", "does not have each field once"),
    ],
)
def test_forms_that_are_refused(form: str, what: str) -> None:
    with pytest.raises(TypeError, match=what):

        @node(form)
        @dataclass(eq=False, slots=True)
        class Other(Expr):
            value: Annotated[Expr, Atom("the value")]


def test_operands_do_not_see_what_the_node_binds() -> None:
    with pytest.raises(TypeError, match="the parameters of Other stand before its operand 'value'"):

        @node("test_other {params} {value}")
        @dataclass(eq=False, slots=True)
        class Other(Expr):
            params: Annotated[tuple[Var, ...], Parameters()]
            value: Annotated[Expr, Atom("the value")]


def test_a_field_is_declared() -> None:
    with pytest.raises(TypeError, match=r"Other\.value does not say what kind of field it is"):

        @node("test_other {value}")
        @dataclass(eq=False, slots=True)
        class Other(Expr):
            value: Expr
