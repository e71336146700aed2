"""A function that is called as it is and with an operand overwritten is two functions, which share
no variable.
"""

from __future__ import annotations

from meta.base.device import CPU
from meta.ir import parse, verify
from meta.passes import infer_type, inplace_update

TEXT = """
func @main(%x: float32[8], %y: float32[8]) -> (float32[8], float32[8]) {
  %a: float32[8] = tvm.relu(%x)
  %b: float32[8] = @f(%a, %y)
  %c: float32[8] = @f(%x, %y)
  %d: float32[8] = tvm.cumsum(%b, axis=0)
  return (%d, %c)
}
func @f(%p: float32[8], %q: float32[8]) -> float32[8] attrs(fused="tvm") {
  %r: float32[8] = tvm.multiply(%p, %q)
  %s: float32[8] = tvm.abs(%r)
  return %s
}"""


def test_variants_share_no_variables() -> None:
    made = inplace_update(infer_type(parse(TEXT)), device=CPU)
    assert {"f", "f_in_place"} <= set(made.functions)
    verify(made, typed=True)
