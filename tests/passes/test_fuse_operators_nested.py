"""Fusion around a branch whose blocks are fused too, and which stands between two neighbours."""

from __future__ import annotations

from meta.base.device import CPU
from meta.dialect import only
from meta.ir import If, parse
from meta.passes import dispatch, fuse_operators

TEXT = """
func @main(%x: float32[6], %p: bool[]) -> (float32[6], float32[6]) {
  %a: float32[6] = tanh(%x)
  %y: float32[6] = if %p {
    %b: float32[6] = tanh(%x)
    %c: float32[6] = multiply(%b, %x)
    yield %c
  } else {
    yield %x
  }
  %d: float32[6] = exp(%a)
  return (%d, %y)
}"""


def test_a_branch_between_two_neighbours() -> None:
    with only("tvm"):
        fused = fuse_operators(dispatch(parse(TEXT), device=CPU))
    branch, last = fused.main.body.bindings
    assert isinstance(branch.value, If)
    assert str(branch.value.then_block.bindings[0].value) == "@fused_tanh_multiply(%x)"
    assert str(last.value) == "@fused_tanh_exp(%x)"
