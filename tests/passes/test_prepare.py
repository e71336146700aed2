"""Which values of a program are computed once."""

from __future__ import annotations

import pytest

from meta.base.device import CPU
from meta.ir import Call, Module, parse, structural_equal, verify
from meta.passes import dead_code, infer_type, prepare

HEAD = "func @main(%x: float16[2, 3], %u: float32[3, 3], %w: float32[3, 4]) attrs(arrays=2)"


def prepared(body: str, result: str, head: str = HEAD) -> Module:
    module = infer_type(parse(f"{head} {{\n{body}\nreturn {result}\n}}"))
    found = prepare(module, device=CPU)
    verify(found, typed=True)
    return found


def names(module: Module, function: str = "main") -> list[str]:
    values = [b.value for b in module.functions[function].body.bindings]
    return [str(v.callee).rpartition(".")[2] for v in values if isinstance(v, Call)]


def test_what_depends_on_arrays_alone_moves() -> None:
    found = prepared(
        """%a = astype(%u, "float16")
        %b = multiply(%a, 2.0)
        %c = matmul(%x, %b)
        %d = astype(%w, "float16")
        %e = matmul(%c, %d)""",
        "%e",
    )
    assert names(found) == ["matmul", "matmul"]
    assert names(found, "prepare") == ["astype", "multiply", "astype"]
    assert len(found.main.params) == 5 and found.main.attrs["prepared_by"] == "prepare"


@pytest.mark.parametrize(
    ("body", "result", "stay"),
    [
        # A view costs nothing.
        ("%a = reshape(%u, (9,))\n%b = sum(%x)", "(%a, %b)", ["reshape", "sum"]),
        # What it is a view of is kept.
        ('%a = astype(%w, "float16")\n%b = reshape(%a, (12,))', "%b", ["reshape"]),
        # More memory than what it is made of.
        ("%a = broadcast_to(%u, (9999, 3, 3))\n%b = sum(%a)", "(%a, %b)", ["broadcast_to"]),
        # Two of one: both are kept, and what leads to them is not.
        ("%a = exp(%u)\n%b = relu(%a)\n%c = tanh(%a)", "(%b, %c)", []),
        # Random, written, and of an input.
        ("%a = dropout_train(%u, 0.5)", "%a", ["dropout_train"]),
        (
            "%a = exp(%u)\n%b = multi_tensor_axpby((%u,), (%u,), 1.0, 1.0)",
            "%a",
            ["exp", "multi_tensor_axpby"],
        ),
        ("%a = exp(%x)", "%a", ["exp"]),
        # A constant's value is known earlier.
        ("%a = zeros((2, 2))", "%a", ["zeros"]),
    ],
)
def test_what_moves_and_what_stays(body: str, result: str, stay: list[str]) -> None:
    assert names(prepared(body, result)) == stay


def test_only_arrays_of_a_model_count() -> None:
    module = infer_type(parse("func @main(%w: float32[2]) { %a = exp(%w)\nreturn %a }"))
    assert structural_equal(prepare(module, device=CPU), module)


def test_blocks_and_closures_are_given_what_they_use() -> None:
    found = prepared(
        """%a = exp(%u)
        %c = any(%x)
        %r = if %c {
          %s = sum(%a)
          yield %s
        } else {
          %t = max(%a)
          yield %t
        }""",
        "%r",
    )
    assert names(found, "prepare") == ["exp"] and "exp" not in names(found)


def test_what_prepares_main_is_not_dead() -> None:
    """Nor is what it calls."""
    found = prepared(
        '%a = astype(%w, "float16")\n%b = matmul(%x, %a)', "%b", HEAD.replace("3, 3", "1")
    )
    assert set(dead_code(found).functions) == {"main", "prepare"}
    calls = parse("""
        func @main(%u: float32[1], %w: float32[3, 4]) -> float16[3, 4] {
          %a: float16[3, 4] = @half(%w)
          return %a
        }
        func @half(%w: float32[3, 4]) -> float16[3, 4] {
          %a: float16[3, 4] = astype(%w, "float16")
          return %a
        }
        func @unused(%w: float32[3, 4]) -> float32[3, 4] { return %w }""").functions
    by_call = {**calls, "main": found.main, "prepare": calls["main"]}
    assert set(dead_code(found.with_functions(by_call)).functions) == {"main", "prepare", "half"}
