"""The order of evaluation that needs less memory: what moves, what stays, and that results do."""

from __future__ import annotations

import pytest

from meta.ir import parse, structural_equal
from meta.passes import infer_type, memory_schedule

HALVES = """
  %a = exp(%x)
  %b = tanh(%x)
  {middle}%c = sum(%a, axis=0)
  %d = sum(%b, axis=0)
  %e = add(%c, %d)
"""


def scheduled(body: str, head: str = "%x: float32[64]", result: str = "%e") -> list[str]:
    """Return the names of the bindings in their new order."""
    module = infer_type(parse(f"func @main({head}) {{\n{body}\n return {result}\n}}"))
    return [b.var.name for b in memory_schedule(module).main.body.bindings]


def test_what_frees_comes_before_what_takes() -> None:
    assert scheduled(HALVES.format(middle="")) == ["a", "c", "b", "d", "e"]


def test_no_better_order_is_no_new_order() -> None:
    body = """
      %a = sum(%x, axis=0)
      %b = exp(%x)
      %c = add(%b, %a)
      %d = sum(%c, axis=0)
    """
    assert scheduled(body, result="%d") == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        # It writes what %c reads: %c stays behind it.
        ("%w = sgd(%a, %b, %v, 0.1, 0.0)\n", ["a", "b", "w", "c", "d", "e"]),
        # It writes to something else.
        ("%w = sgd(%v, %b, %v2, 0.1, 0.0)\n", ["a", "c", "b", "w", "d", "e"]),
        ("%f = @other(%b)\n", ["a", "b", "f", "c", "d", "e"]),
    ],
)
def test_nothing_passes_a_write_to_what_it_reads(middle: str, expected: list[str]) -> None:
    text = f"""
    func @main(%x: float32[64], %v: float32[64], %v2: float32[64]) {{
      {HALVES.format(middle=middle)}
      return %e
    }}
    func @other(%x: float32[64]) -> float32[64] {{
      return %x
    }}
    """
    module = infer_type(parse(text))
    assert [b.var.name for b in memory_schedule(module).main.body.bindings] == expected


def test_random_calls_keep_their_order() -> None:
    body = """
      %g = exp(%x)
      %a = dropout_train(%g, p=0.5)
      %b = dropout_train(%x, p=0.5)
      %a0 = %a.0
      %b0 = %b.0
      %d = sum(%g, axis=0)
      %f = sum(%b0, axis=0)
      %e = sum(%a0, axis=0)
    """
    order = scheduled(body, result="(%d, %e, %f)")
    assert order != ["g", "a", "b", "a0", "b0", "d", "f", "e"]
    assert order.index("a") < order.index("b")


def test_blocks_and_closures_are_scheduled_too() -> None:
    text = """
    func @main(%p: bool[], %x: float32[64]) -> float32[] {{
      %y: float32[] = if %p {{
        {0}
        yield %e
      }} else {{
        %z: float32[] = sum(%x)
        yield %z
      }}
      return %y
    }}
    """
    before = ["%a: float32[64] = exp(%x)", "%b: float32[64] = tanh(%x)"]
    rest = ["%d: float32[] = sum(%b)", "%e: float32[] = add(%c, %d)"]
    c = "%c: float32[] = sum(%a)"
    given, expected = (
        parse(text.format("\n".join(lines)))
        for lines in ([*before, c, *rest], [before[0], c, before[1], *rest])
    )
    assert structural_equal(memory_schedule(given), expected)
