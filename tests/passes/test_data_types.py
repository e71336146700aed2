"""Passes on data types and references: gradients, promotion to values, what must not be moved."""

from __future__ import annotations

import pytest

import meta
from meta.base.errors import GradientError
from meta.ir import (
    Binding,
    Expr,
    If,
    Module,
    Primitive,
    bindings,
    parse,
    structural_equal,
    verify,
)
from meta.passes import (
    autodiff,
    dead_code,
    eliminate_common_subexpressions,
    infer_type,
    inline,
    lambda_lift,
    memory_schedule,
    promote_refs,
)
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.effects import Effects
from meta.passes.liveness import Liveness
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret, run_module
from tests.program_text import module

BOX = "type Box { Empty() Full(float32[2]) }\n"


def values(program: Module) -> list[str]:
    return [kind(b.value) for f in program.functions.values() for b in bindings(f)]


def kind(value: Expr) -> str:
    return value.name if isinstance(value, Primitive) else type(value).__name__


# Promotion.

LOCAL = """
func @main(%x: float32[2], %p: bool[]) -> float32[2] {
  %r: ref(float32[2]) = make_ref(%x)
  %s: ref(float32[2]) = make_ref(%x)
  %u: () = if %p {
    %a: float32[2] = read_ref(%r)
    %b: float32[2] = exp(%a)
    %w: () = write_ref(%r, %b)
    %i: float32[2] = if %p {
      %t: ref(float32[2]) = make_ref(%b)
      %c: float32[2] = multiply(%b, %b)
      %v: () = write_ref(%s, %c)
      %d: float32[2] = read_ref(%t)
      yield %d
    } else {
      yield %x
    }
    %z: () = write_ref(%s, %i)
    yield %z
  } else {
    %z1: () = write_ref(%s, %x)
    yield (,)
  }
  %e: float32[2] = read_ref(%r)
  %f: float32[2] = read_ref(%s)
  %g: float32[2] = add(%e, %f)
  %last: () = write_ref(%r, %g)
  %y: float32[2] = read_ref(%r)
  return %y
}"""


@pytest.mark.parametrize("p", [True, False])
def test_references_of_one_function_become_values(p: bool) -> None:
    program = module(LOCAL)
    promoted = promote_refs(program)
    verify(promoted, typed=True)
    assert not {"make_ref", "read_ref", "write_ref"} & set(values(promoted))
    args = [meta.array([0.5, 1.0]), meta.array(p)]
    check(run_module(promoted, args), run_module(program, args), 0, 0)
    assert promote_refs(promoted) is promoted


KEPT = {
    "in a closure": "%f: fn() -> float32[2] = fn() -> float32[2] {\n"
    " %a: float32[2] = read_ref(%r)\n return %a\n }",
    "in a tuple": "%t: (ref(float32[2]), bool[]) = (%r, %p)",
    "in a reference": "%s: ref(ref(float32[2])) = make_ref(%r)\n"
    " %q: ref(ref(float32[2])) = @same(%s)",
    "in data": "%h: type Holder = construct Holder(%r) -> type Holder",
    "given to a function": "%a: float32[2] = @read(%r)",
    "of an if": "%s: ref(float32[2]) = if %p {\n yield %r\n } else {\n yield %r\n }",
}


@pytest.mark.parametrize("use", KEPT.values(), ids=KEPT.keys())
def test_references_that_others_may_reach_stay(use: str) -> None:
    program = module(f"""
    type Holder {{ Holder(ref(float32[2])) }}
    func @main(%x: float32[2], %p: bool[]) -> float32[2] {{
      %r: ref(float32[2]) = make_ref(%x)
      {use}
      %y: float32[2] = read_ref(%r)
      return %y
    }}
    func @read(%r: ref(float32[2])) -> float32[2] {{
      %y: float32[2] = read_ref(%r)
      return %y
    }}
    func @same(%r: ref(ref(float32[2]))) -> ref(ref(float32[2])) {{ return %r }}""")
    assert any(
        kind(b.value) == "make_ref" and b.var.name == "r"
        for b in bindings(promote_refs(program).main)
    )


def test_a_reference_of_unknown_extents_stays() -> None:
    program = module("""
    func @main(%x: float32[2], %z: float32[3]) -> float32[?] {
      %r: ref(float32[?]) = make_ref(%x)
      %w: () = write_ref(%r, %z)
      %y: float32[?] = read_ref(%r)
      return %y
    }""")
    assert promote_refs(program) is program
    inferred = infer_type(program)
    assert str(inferred.main.body.bindings[0].var.type) == "ref(float32[?])"
    args = [meta.array([1.0, 2.0]), meta.array([1.0, 2.0, 3.0])]
    for level in range(4):
        with meta.dialect.only("torch"):
            assert meta.vm.compile(program, *args, opt_level=level)(*args).shape == (3,)


def test_references_that_hold_references_become_values() -> None:
    program = module("""
    func @main(%x: float32[2]) -> float32[2] {
      %r: ref(float32[2]) = make_ref(%x)
      %s: ref(ref(float32[2])) = make_ref(%r)
      %t: ref(float32[2]) = read_ref(%s)
      %y: float32[2] = read_ref(%t)
      return %y
    }""")
    assert values(promote_refs(program)) == []


def test_a_loop_stays_in_tail_position() -> None:
    program = module("""
    func @loop(%n: int64[], %x: float32[2]) -> float32[2] {
      %r: ref(float32[2]) = make_ref(%x)
      %more: bool[] = greater(%n, const int64[] 0)
      %y: float32[2] = if %more {
        %a: float32[2] = add(%x, 1.0)
        %w: () = write_ref(%r, %a)
        %b: float32[2] = read_ref(%r)
        %m: int64[] = subtract(%n, const int64[] 1)
        %z: float32[2] = @loop(%m, %b)
        yield %z
      } else {
        yield %x
      }
      return %y
    }""")
    function = promote_refs(program).functions["loop"]
    last = function.body.bindings[-1]
    assert isinstance(last.value, If) and function.body.result is last.var
    assert last.value.then_block.result is last.value.then_block.bindings[-1].var


# Gradients.

SQUARE = """
func @main(%x: float32[2]) -> float32[2] {
  %r: ref(float32[2]) = make_ref(%x)
  %a: float32[2] = read_ref(%r)
  %b: float32[2] = multiply(%a, %x)
  %w: () = write_ref(%r, %b)
  %c: float32[2] = read_ref(%r)
  return %c
}"""


def test_the_gradient_of_promoted_references() -> None:
    backward = autodiff(module(SQUARE), wrt=["x"])
    verify(backward, typed=True)
    x = meta.array([2.0, 3.0])
    _, (gradient,) = run_module(backward, [meta.array([1.0, 1.0]), x])
    check(gradient, meta.array([4.0, 6.0]), 0, 0)


THROUGH_DATA = f"""{BOX}
func @main(%x: float32[2], %z: float32[2]) -> float32[2] {{
  %b: type Box = construct Full(%x) -> type Box
  %y: float32[2] = @open(%b)
  %v: float32[2] = multiply(%y, %z)
  return %v
}}
func @open(%b: type Box) -> float32[2] {{
  %full: bool[] = is_variant Full(%b)
  %y: float32[2] = if %full {{
    %a: float32[2] = get_field Full.0(%b) -> float32[2]  # model.py:9
    yield %a
  }} else {{
    %f: float32[2] = fail "empty"() -> float32[2]
    yield %f
  }}
  return %y
}}"""

THROUGH_REF = """
func @main(%x: float32[2], %z: float32[2]) -> float32[2] {
  %r: ref(float32[2]) = @new()
  %w: () = @put(%r, %x)
  %y: float32[2] = @get(%r)
  %v: float32[2] = multiply(%y, %z)
  return %v
}
func @new() -> ref(float32[2]) {
  %r: ref(float32[2]) = make_ref(const float32[2] [0.0, 0.0])
  return %r
}
func @put(%r: ref(float32[2]), %x: float32[2]) -> () {
  %w: () = write_ref(%r, %x)
  return %w
}
func @get(%r: ref(float32[2])) -> float32[2] {
  %y: float32[2] = read_ref(%r)  # model.py:9
  return %y
}"""

THROUGH_CLOSURE = """
func @main(%x: float32[2], %z: float32[2]) -> float32[2] {
  %r: ref(float32[2]) = make_ref(%z)
  %f: fn(float32[2]) -> () = fn(%a: float32[2]) -> () {
    %w: () = write_ref(%r, %a)
    return %w
  }
  %u: () = %f(%x)
  %y: float32[2] = read_ref(%r)  # model.py:9
  %v: float32[2] = multiply(%y, %z)
  return %v
}"""


@pytest.mark.parametrize("text", [THROUGH_REF, THROUGH_CLOSURE])
def test_a_gradient_through_references_is_an_error(text: str) -> None:
    program = module(text)
    with pytest.raises(GradientError, match="flow through a reference") as caught:
        autodiff(program, wrt=["x"])
    assert str(caught.value.span) == "model.py:9" and "call backward" in str(caught.value)


@pytest.mark.parametrize("text", [THROUGH_DATA, THROUGH_REF])
def test_a_gradient_beside_data_and_references_is_fine(text: str) -> None:
    backward = autodiff(module(text), wrt=["z"])
    verify(backward, typed=True)
    x, z = meta.array([2.0, 3.0]), meta.array([5.0, 7.0])
    _, (gradient,) = run_module(backward, [meta.array([1.0, 1.0]), x, z])
    check(gradient, x, 0, 0)


@pytest.mark.parametrize("text", [THROUGH_DATA, THROUGH_REF, THROUGH_CLOSURE])
def test_the_tape_follows_what_is_run(text: str) -> None:
    x, z = meta.array([2.0, 3.0]), meta.array([5.0, 7.0])
    x.requires_grad = True
    interpret(module_program(module(text)), x, z).backward(meta.array([1.0, 1.0]))
    check(x.grad, z, 0, 0)


# Order and memory.

ORDER = """
func @main(%x: float32[64], %p: bool[]) -> (float32[64], float32[64]) {
  %r: ref(float32[64]) = @new(%x)
  %a: float32[64] = read_ref(%r)
  %b: float32[64] = exp(%a)
  %w: () = write_ref(%r, %b)
  %u: float32[64] = if %p {
    %v: float32[64] = fail "stop"() -> float32[64]
    yield %v
  } else {
    yield %a
  }
  %c: float32[64] = read_ref(%r)
  return (%a, %c)
}
func @new(%x: float32[64]) -> ref(float32[64]) {
  %r: ref(float32[64]) = make_ref(%x)
  return %r
}"""


def test_effects_of_references_and_failures() -> None:
    program = module(ORDER)
    main = program.main
    effects = Effects(main, Liveness(main, program))
    places = {b.var.name: effects.places(b) for b in main.body.bindings}

    def ordered(one: str, two: str) -> bool:
        (reads, writes), (others_read, others_write) = places[one], places[two]
        return bool(writes & (others_read | others_write) or others_write & reads)

    assert ordered("a", "w") and ordered("w", "c") and ordered("r", "w")
    assert not ordered("a", "c") and not ordered("a", "b")
    assert all(ordered("u", other) for other in places if other != "u")
    assert [b.var for b in memory_schedule(program).main.body.bindings] == [
        b.var for b in main.body.bindings
    ]


def test_what_is_unused_and_what_stays() -> None:
    program = module(f"""{BOX}
    func @main(%x: float32[2]) -> float32[2] {{
      %r: ref(float32[2]) = make_ref(%x)
      %s: ref(float32[2]) = make_ref(%x)
      %a: float32[2] = read_ref(%r)
      %w: () = write_ref(%r, %x)
      %b: type Box = construct Full(%x) -> type Box
      return %x
    }}""")
    kept = dead_code(program).main.body.bindings
    assert [kind(b.value) for b in kept] == ["make_ref", "write_ref"]


def test_what_is_the_same_twice() -> None:
    program = module(f"""{BOX}
    func @main(%b: type Box, %x: float32[2]) -> bool[] {{
      %p: bool[] = is_variant Full(%b)
      %q: bool[] = is_variant Full(%b)
      %c: float32[2] = get_field Full.0(%b) -> float32[2]
      %d: float32[2] = get_field Full.0(%b) -> float32[2]
      %h: float32[2] = add(%c, %d)
      %r: ref(float32[2]) = make_ref(%h)
      %s: ref(float32[2]) = make_ref(%h)
      %e: float32[2] = read_ref(%r)
      %f: float32[2] = read_ref(%r)
      %g: bool[] = logical_and(%p, %q)
      return %g
    }}""")
    found = values(eliminate_common_subexpressions(program))
    assert found == [
        "is_variant",
        "get_field",
        "Call",
        *["make_ref"] * 2,
        *["read_ref"] * 2,
        "Call",
    ]


def test_buffers_know_what_is_held() -> None:
    """What a function puts into a reference of its caller may be written there."""
    program = module("""
    func @main(%x: float32[2], %g: float32[2], %z: float32[2]) -> float32[2] {
      %r: ref(float32[2]) = make_ref(%z)
      %c: float32[2] = copy(%x)
      %u: () = @put(%r, %c)
      %y: float32[2] = read_ref(%r)
      %s: () = sgd(%y, %g, %g, 0.5, 0.0)
      return %c
    }
    func @put(%r: ref(float32[2]), %x: float32[2]) -> () {
      %w: () = write_ref(%r, %x)
      return %w
    }""")
    summaries = AliasSummaries(program)
    assert summaries["put"].stores
    buffers = AliasSets(program.main, summaries)
    c = next(b.var for b in program.main.body.bindings if b.var.name == "c")
    assert c in buffers.written and program.main.params[0] not in buffers.written


def test_inlining_and_lifting_keep_the_order() -> None:
    program = module("""
    func @main(%x: float32[2]) -> float32[2] {
      %r: ref(float32[2]) = make_ref(%x)
      %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
        %old: float32[2] = read_ref(%r)
        %w: () = write_ref(%r, %a)
        return %old
      }
      %b: float32[2] = add(%x, 1.0)
      %c: float32[2] = %f(%b)
      %d: float32[2] = %f(%c)
      %e: float32[2] = subtract(%d, %c)
      return %e
    }""")
    x = meta.array([1.0, 2.0])
    expected = run_module(program, [x])
    check(expected, meta.array([1.0, 1.0]), 0, 0)
    inlined = dead_code(inline(program))
    assert not {"make_ref", "write_ref", "Function"} & set(values(promote_refs(inlined)))
    for changed in (inlined, promote_refs(inlined), lambda_lift(program)):
        verify(changed, typed=True)
        check(run_module(changed, [x]), expected, 0, 0)
    again = parse(str(lambda_lift(program)))
    assert structural_equal(again, lambda_lift(program))
    assert isinstance(again.main.body.bindings[0], Binding)
    assert "read_ref" in values(again)
