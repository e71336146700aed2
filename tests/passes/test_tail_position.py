"""A result that is taken apart and put together again is the tuple itself, so that a recursive call
is in tail position: such a recursion needs no stack.
"""

from __future__ import annotations

import pytest

import meta
from meta.base import config
from meta.base.errors import IRError
from meta.ir import first_difference, parse, structural_equal, verify
from meta.passes import dead_code, simplify
from meta.vm.run.interpreter import run_module

COUNT = """
func @main(%n: int64[], %x: float32[2]) -> (int64[], float32[2]) {{
  %r: (int64[], float32[2]) = @f(%n, %x)
  {0}
}}
func @f(%n: int64[], %x: float32[2]) -> (int64[], float32[2]) {{
  %more: bool[] = greater(%n, 0)
  %r: (int64[], float32[2]) = if %more {{
    %m: int64[] = subtract(%n, 1)
    %y: float32[2] = add(%x, 1.0)
    %t: (int64[], float32[2]) = @f(%m, %y)
    {1}
  }} else {{
    yield (%n, %x)
  }}
  {0}
}}"""
AGAIN = "%a: int64[] = %{0}.0\n %b: float32[2] = %{0}.1\n {1} (%a, %b)"
APART = COUNT.format(AGAIN.format("r", "return"), AGAIN.format("t", "yield"))
WHOLE = COUNT.format("return %r", "yield %t")


def test_a_result_put_together_again_is_the_whole() -> None:
    found, expected = dead_code(simplify(parse(APART))), parse(WHOLE)
    assert structural_equal(found, expected), first_difference(found, expected)
    verify(found, typed=True)


@pytest.mark.parametrize(
    "result",
    [
        "%a: int64[] = %t.1\n %b: int64[] = %t.0\n return (%a, %b)",
        "%a: int64[] = %t.0\n %b: int64[] = %t.0\n return (%a, %b)",
        "%a: int64[] = %t.0\n return (%a, %n)",
        "%s: (int64[], int64[]) = @f(%n)\n %a: int64[] = %t.0\n %b: int64[] = %s.1\n"
        " return (%a, %b)",
    ],
)
def test_other_results_stay(result: str) -> None:
    module = parse(f"""
    func @main(%n: int64[]) -> (int64[], int64[]) {{
      %t: (int64[], int64[]) = @f(%n)
      {result}
    }}
    func @f(%n: int64[]) -> (int64[], int64[]) {{
      %m: int64[] = negative(%n)
      return (%n, %m)
    }}""")
    assert structural_equal(simplify(module), module)


def test_a_part_of_the_fields_stays() -> None:
    module = parse("""
    func @main(%n: int64[]) -> (int64[], int64[]) {
      %t: (int64[], int64[], int64[]) = @f(%n)
      %a: int64[] = %t.0
      %b: int64[] = %t.1
      return (%a, %b)
    }
    func @f(%n: int64[]) -> (int64[], int64[], int64[]) {
      %m: int64[] = negative(%n)
      return (%n, %m, %n)
    }""")
    assert structural_equal(simplify(module), module)


def test_it_then_takes_no_stack() -> None:
    def args() -> list[object]:
        return [meta.array(500), meta.array([0.0, 1.0])]

    with config.override(META_MAX_DEPTH=50):
        with pytest.raises(IRError, match="50"):
            run_module(parse(APART), args())
        for run in (
            meta.vm.compile(parse(APART), opt_level=1),
            lambda *a: run_module(dead_code(simplify(parse(APART))), a),
        ):
            n, x = run(*args())
            assert n.item() == 0 and x.numpy().tolist() == [500.0, 501.0]
