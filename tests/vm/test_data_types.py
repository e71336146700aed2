"""Data types and references: the interpreter and the VM give the same, at all levels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import meta
from meta.base import config
from meta.base.call_context import current
from meta.base.errors import ExecutionError, IRError, TraceError
from meta.ir import (
    ConstructorDefinition,
    DataType,
    If,
    Primitive,
    TensorType,
    TypeDefinition,
)
from meta.op.core.tracing import BlockTrace
from meta.testing import check
from meta.vm.compiler import bytecode
from meta.vm.compiler.calling_convention import module_program
from meta.vm.compiler.pipeline import MAX_LEVEL
from meta.vm.run.interpreter import interpret
from meta.vm.save.code_json import code_from_json, code_to_json, constant_name
from tests.program_text import module
from tests.vm.data_programs import (
    BRANCHES,
    CLOSURE,
    HELD,
    KNOT,
    LIST,
    LOOP,
    STRAIGHT,
    SUM,
    SUM_BY_LOOPS,
    TREE,
)


def interpreted(text: str, *args: meta.ndarray) -> meta.ndarray:
    return interpret(module_program(module(text)), *args)


@pytest.fixture(autouse=True)
def verified() -> Iterator[None]:
    with config.override(META_VERIFY=True):
        yield


def run(text: str, *args: object) -> list[list[float]]:
    """Run under both executors, at each level; return what the interpreter gives, as lists."""
    arrays = [meta.array(a) for a in args]
    expected = interpreted(text, *arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for level in range(MAX_LEVEL + 1):
        for disabled in ([], ["inline"]):
            with meta.PassContext(disabled=disabled):
                found = meta.vm.compile(module(text), *arrays, opt_level=level)(*arrays)
            for a, b in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
                check(a, b, 0, 0, what=f"level {level}")
    return [e.numpy().tolist() for e in expected]


def test_lists_and_trees() -> None:
    assert run(SUM, 1.5, 5) == [7.5]
    assert run(SUM_BY_LOOPS, 1.5, 5) == [7.5]
    assert run(TREE, [1.0, 2.0], 4) == [[15.0, 30.0]]


def test_references() -> None:
    assert run(STRAIGHT, [1.0, 2.0]) == [[2.0, 3.0], [2.0, 6.0]]
    assert run(BRANCHES, [1.0, 2.0], True) == [[2.0, 3.0]]
    assert run(BRANCHES, [1.0, 2.0], False) == [[1.0, 2.0]]
    assert run(LOOP, [1.0, 2.0], 5) == [[32.0, 64.0]]
    assert run(CLOSURE, [1.0, 2.0]) == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert run(KNOT, 1.0, 4) == [5.0]


def test_references_tuples_and_functions_in_data() -> None:
    assert run(HELD, [1.0, 2.0], 3.0, True) == [[2.0, 4.0], 3.0, False]
    assert run(HELD, [1.0, 2.0], 3.0, False) == [[1.0, 2.0], 9.0, True]


def test_loops_and_branches_of_models_carry_data_values() -> None:
    scalar, one = TensorType((), "float32"), DataType("Chain")
    chain = TypeDefinition(
        "Chain",
        (ConstructorDefinition("End", ()), ConstructorDefinition("Link", (scalar, one))),
    )

    @meta.model.trace
    def last(x: meta.ndarray) -> meta.ndarray:
        trace = current()
        type_ = trace.define(chain)
        end = trace.emit(Primitive("construct", (), ("End",), type_), type_)

        def longer(state: tuple) -> tuple:
            rest, n, y = state
            trace = current()
            fields = (trace.atom(y), trace.atom(rest))
            link = Primitive("construct", fields, ("Link",), type_)
            return trace.emit(link, type_), n - 1, y * 2.0

        made, _, _ = meta.while_loop(lambda s: s[1] > 0, longer, (end, 3, x))
        made = meta.cond(x > 0.0, lambda: made, lambda: end)
        found = trace.emit(Primitive("is_variant", (made.atom,), ("Link",)), TensorType((), "bool"))
        then, other = BlockTrace(trace), BlockTrace(trace)
        first = Primitive("get_field", (then.atom(made),), ("Link", 0), scalar)
        value = then.emit(first, scalar)
        blocks = then.finish(value), other.finish(meta.array(-1.0))
        return trace.emit(If(found.atom, *blocks), scalar)

    for x, expected in ((1.5, 6.0), (-1.5, -1.0)):
        assert last(meta.array(x)).item() == expected
        assert meta.vm.compile(last, meta.array(x))(meta.array(x)).item() == expected


@pytest.mark.parametrize("text", [SUM, SUM_BY_LOOPS], ids=["recursion", "loops"])
@pytest.mark.long
def test_long_lists(text: str) -> None:
    n = 20_000
    arrays = (meta.array(1.0), meta.array(n))
    with meta.no_grad():
        assert interpreted(text, *arrays).item() == n
    assert meta.vm.compile(module(text), *arrays)(*arrays).item() == n


def test_the_depth_is_limited() -> None:
    arrays = (meta.array(1.0), meta.array(300))
    with config.override(META_MAX_DEPTH=100):
        assert meta.vm.compile(module(SUM_BY_LOOPS), *arrays)(*arrays).item() == 300
        for call in (interpreted, lambda t, *a: meta.vm.compile(module(t), *a)(*a)):
            with pytest.raises(IRError, match="100 frames deep"):
                call(SUM, *arrays)


INCOMPLETE = (
    LIST
    + """
func @main(%x: float32[], %p: bool[]) -> float32[] {
  %nil: type List = construct Nil() -> type List
  %list: type List = construct Cons(%x, %nil) -> type List
  %l: type List = if %p {
    yield %nil
  } else {
    yield %list
  }
  %c: bool[] = is_variant Cons(%l)
  %u: float32[] = if %c {
    %h: float32[] = get_field Cons.0(%l) -> float32[]
    yield %h
  } else {
    %f: float32[] = fail "no case fits"() -> float32[]  # model.py:7
    yield %f
  }
  return %x
}"""
)


def test_a_failure_stays_where_it_is_reached() -> None:
    """Nothing uses the match's value."""
    assert run(INCOMPLETE, 2.0, False) == [2.0]
    arrays = (meta.array(2.0), meta.array(True))
    for level in range(MAX_LEVEL + 1):
        executable = meta.vm.compile(module(INCOMPLETE), *arrays, opt_level=level)
        with pytest.raises(ExecutionError, match="no case fits") as caught:
            executable(*arrays)
        assert str(caught.value.span) == "model.py:7"
    with pytest.raises(ExecutionError, match="no case fits") as caught:
        interpreted(INCOMPLETE, *arrays)
    assert str(caught.value.span) == "model.py:7"


def test_a_field_of_another_constructor() -> None:
    text = INCOMPLETE.replace("is_variant Cons(%l)", "is_variant Nil(%l)")
    arrays = (meta.array(2.0), meta.array(True))
    executable = meta.vm.compile(module(text), *arrays, opt_level=0)
    for call in (executable, lambda *a: interpreted(text, *a)):
        with pytest.raises(ExecutionError, match="field 0 of Cons is taken"):
            call(*arrays)


def test_what_leaves_main_is_no_constant_of_the_program() -> None:
    text = (
        LIST
        + """
    func @main(%x: float32[]) -> (float32[], float32[]) {
      %nil: type List = construct Nil() -> type List
      %l: type List = construct Cons(const float32[] 3.0, %nil) -> type List
      %r: ref(float32[]) = make_ref(%x)
      %w: () = write_ref(%r, const float32[] 4.0)
      %y: float32[] = get_field Cons.0(%l) -> float32[]
      %z: float32[] = read_ref(%r)
      return (%y, %z)
    }"""
    )
    x = meta.array(1.0)
    for level in range(MAX_LEVEL + 1):
        executable = meta.vm.compile(module(text), x, opt_level=level)
        for call in (executable, lambda *a: interpreted(text, *a)):
            first = call(x)
            for one in first:
                one.torch().zero_()
            assert [r.item() for r in call(x)] == [3.0, 4.0]


def test_a_constant_in_a_reference_is_not_written() -> None:
    text = """
    func @main(%g: float32[2], %v: float32[2], %p: bool[]) -> float32[2] {
      %r: ref(float32[2]) = make_ref(%g)
      %u: () = if %p {
        %w: () = write_ref(%r, const float32[2] [1.0, 2.0])
        yield %w
      } else {
        yield (,)
      }
      %x: float32[2] = read_ref(%r)
      %s: () = sgd(%x, %g, %v, 0.5, 0.0)
      return %x
    }"""
    arrays = (meta.array([1.0, 1.0]), meta.array([0.0, 0.0]), meta.array(True))
    for level in range(MAX_LEVEL + 1):
        executable = meta.vm.compile(module(text), *arrays, opt_level=level)
        with pytest.raises(IRError, match="writes to a constant"):
            executable(*arrays)


def test_values_that_are_held_are_not_overwritten() -> None:
    """An in-place kernel and the arena must not take the memory of what a reference holds."""
    text = """
    func @main(%x: float32[64]) -> (float32[64], float32[64]) {
      %a: float32[64] = add(%x, 1.0)
      %r: ref(float32[64]) = make_ref(%a)
      %b: float32[64] = multiply(%a, 2.0)
      %c: float32[64] = multiply(%b, %b)
      %d: float32[64] = sum(%c, axis=0)
      %e: float32[64] = read_ref(%r)
      %f: float32[64] = multiply(%e, 3.0)
      return (%c, %f)
    }""".replace("  %d: float32[64] = sum(%c, axis=0)\n", "")
    assert run(text, [1.0] * 64) == [[16.0] * 64, [6.0] * 64]


@pytest.mark.parametrize("text", [SUM, CLOSURE, HELD, STRAIGHT], ids=["sum", "closure", "h", "s"])
def test_code_is_saved_and_loaded(text: str, tmp_path: Path) -> None:
    arguments = {SUM: (1.5, 5), HELD: ([1.0, 2.0], 3.0, False)}.get(text, ([1.0, 2.0],))
    arrays = [meta.array(a) for a in arguments]
    executable = meta.vm.compile(module(text), *arrays)
    code = executable.code
    tensors = {constant_name(i): c for i, c in enumerate(code.constants)}
    assert code_from_json(code_to_json(code), tensors) == code  # type: ignore[arg-type]
    executable.save(tmp_path / "program")
    loaded = meta.vm.load(tmp_path / "program")
    found, expected = loaded(*arrays), executable(*arrays)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        check(a, b, 0, 0)
    assert str(loaded.code) == str(code)
    assert loaded.module.types == executable.module.types


def test_the_listing_names_what_is_done() -> None:
    arrays = (meta.array(2.0), meta.array(True))
    code = meta.vm.compile(module(INCOMPLETE), *arrays, opt_level=0).code
    listing = str(code)
    for shown in ("is_variant Cons(r", 'fail "no case fits"()', "get_field Cons.0(r"):
        assert shown in listing
    instructions = [i for f in code.functions.values() for i in f.instructions()]
    names = {i.name for i in instructions if isinstance(i, bytecode.RunPrimitive)}
    assert {"fail", "get_field", "is_variant"} <= names
    executable = meta.vm.compile(module(SUM), meta.array(1.0), meta.array(3))
    assert executable.profile(meta.array(1.0), meta.array(3)).rows
    assert len(executable.debug(meta.array(1.0), meta.array(3))) > 3
    assert "less_equal" in str(executable.explain())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("func @main(%l: type List) -> float32[] { return const float32[] 1.0 }", "%l"),
        ("func @main(%r: ref(float32[])) -> float32[] { return const float32[] 1.0 }", "%r"),
        (
            "func @main(%x: float32[]) -> (float32[], ref(float32[])) {\n"
            "  %r: ref(float32[]) = make_ref(%x)\n  return (%x, %r)\n}",
            "ref(float32[])",
        ),
    ],
)
def test_main_takes_and_returns_tensors(text: str, what: str) -> None:
    with pytest.raises(TraceError, match="takes and returns") as caught:
        module_program(module(LIST + text))
    assert what in str(caught.value)
