"""Tests of branches, references, the order of effects, and what is known while converting."""

from __future__ import annotations

import pytest

import meta
from tests.frontend.relay.convert.running import model_of, run


def test_only_the_chosen_branch_is_evaluated() -> None:
    text = """
    def @forever(%x: float32) -> float32 { @forever(%x) }
    def @main(%x: float32) { if (%x > 0f) { %x * 2f } else { @forever(%x) } }"""
    assert run(text, 3.0) == 6.0


def test_branches_of_tuples_and_a_condition_that_is_known() -> None:
    text = """
    def @main(%x: float32, %c: bool) {
      %0 = if (%c) { (%x, (%x + 1f,)) } else { (0f, (1f,)) };
      %1 = if (1 < 2) { %0.0 } else { @nowhere(%x) };
      (%0, %1)
    }"""
    assert run(text, 3.0, False) == ((0.0, (1.0,)), 0.0)


def test_references_hold_what_was_written_last() -> None:
    text = """
    def @main(%x: float32, %c: bool) {
      let %r = ref(%x);
      let %keep = ref_read(%r);
      ref_write(%r, %x + 1f);
      let %u = if (%c) { ref_write(%r, ref_read(%r) * 10f) } else { () };
      let %s = ref((%x, ref_read(%r)));
      (%keep, ref_read(%r), ref_read(%s).1)
    }"""
    assert run(text, 2.0, True) == (2.0, 30.0, 30.0)
    assert run(text, 2.0, False) == (2.0, 3.0, 3.0)


def test_a_closure_over_a_reference_counts() -> None:
    text = """
    def @main(%x: int32) {
      let %count = ref(%x);
      let %next = fn () -> int32 {
        let %now = ref_read(%count);
        ref_write(%count, %now + 1);
        %now
      };
      let %a = %next();
      let %b = %next();
      (%a, %b, ref_read(%count))
    }"""
    assert run(text, meta.array(5, "int32")) == (5, 6, 7)


def test_what_is_computed_of_constants_is_known() -> None:
    module = model_of("def @main(%x: float32) { %x + (2f * 3f) }").program(meta.array(1.0)).module
    assert len(module.main.body.bindings) == 1


def test_branches_of_different_sizes_have_an_unknown_dimension() -> None:
    text = """
    def @main(%x: Tensor[(2), float32], %y: Tensor[(3), float32], %c: bool) {
      if (%c) { %x } else { %y }
    }"""
    assert run(text, [1.0, 2.0], [1.0, 2.0, 3.0], False) == [1.0, 2.0, 3.0]


def test_branches_may_nest_deeper_than_blocks_of_the_ir() -> None:
    body = "%x"
    for i in range(80):
        body = f"if (%x > {i}f) {{ %x * {i}f }} else {{ {body} }}"
    assert run(f"def @main(%x: float32) {{ {body} }}", 10.5) == 105.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def @main(%x: float32) { if (%x) { %x } else { %x } }", "no boolean scalar"),
        ("def @main(%x: float32) { if (%x < 1f) { %x } else { (%x,) } }", "different types"),
        ("def @main(%x: float32) { ref_read(%x) }", "no reference"),
        ("def @main(%x: float32) { ref(%x) }", "main returns a value"),
        ("def @main(%x: float32) { add(%x, (%x, %x)) }", "no tensor|add"),
        ("def @main(%x: float32) { let %y: int32 = %x; %y }", "%y has another type"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(meta.MetaError, match=message):
        model_of(text).program(meta.array(1.0))


def test_an_error_of_an_operator_says_where_it_was_called() -> None:
    text = "def @main(%x: Tensor[(2), float32], %y: Tensor[(3), float32]) {\n  add(%x, %y)\n}"
    with pytest.raises(meta.MetaError, match=r"add\(float32\[2\], float32\[3\]\), .*:3:"):
        model_of(text).program(meta.array([1.0, 2.0]), meta.array([1.0, 2.0, 3.0]))


def test_more_clauses_than_blocks_may_nest() -> None:
    names = [f"C{i}" for i in range(40)]
    clauses = ", ".join(f"{n}(%y) => {{ %y + {i}f }}" for i, n in enumerate(names))
    text = f"""
    type Case {{ {", ".join(f"{n}(float32)" for n in names)} }}
    def @f(%t: Case) -> float32 {{ match (%t) {{ {clauses} }} }}
    def @main(%x: float32, %c: bool) {{
      let %t: Case = if (%c) {{ C39(%x) }} else {{ C3(%x) }};
      @f(%t)
    }}"""
    assert run(text, 0.5, True) == 39.5
