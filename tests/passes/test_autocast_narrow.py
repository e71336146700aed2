"""Sums in mixed precision read what is rounded for products, and only that."""

from __future__ import annotations

import pytest
import torch

from meta.ir import Call, parse, text
from meta.passes import explain_autocast, infer_type
from meta.passes.autocast.hoist import NARROW_REASON
from tests.passes.casting import TO_HALF, TO_WIDE, cast_module, casts, same_results

GRADIENT = """
func @main(%x: float32[4, 3], %w: float32[3, 3]) -> (float32[4, 3], float32[2, 3], float32[3]) {
  %y: float32[4, 3] = exp(%x)
  %p: float32[4, 3] = matmul(%y, %w)
  %r: float32[2, 2, 3] = reshape(%y, shape=(2, 2, 3))
  %s: float32[2, 3] = sum(%r, axis=(1,))
  %t: float32[3] = sum(%y, axis=(0,))
  OTHER
  return (%p, %s, %t)
}
"""


def test_sums_read_what_is_rounded() -> None:
    module = cast_module(GRADIENT.replace("OTHER\n", ""))
    # y once, before its view, and w; the two sums, of y and its view; the product is a result.
    assert sorted(casts(module)) == sorted([TO_HALF, TO_HALF, TO_WIDE, TO_WIDE, TO_WIDE])
    (y,) = (b for b in module.main.body.bindings if b.var.name == "y")
    readers = [b for b in module.main.body.bindings if isinstance(b.value, Call)]
    assert sum(y.var in b.value.args for b in readers) == 1, text(module)
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 3, generator=generator) for n in (4, 3))
    same_results(infer_type(parse(GRADIENT.replace("OTHER\n", ""))), module, x, w)


@pytest.mark.parametrize(
    ("other", "result"),
    [
        ("%z: float32[4, 3] = exp(%y)", "%z"),  # float32 is needed as it is
        ("%z: float32[4, 3] = relu(%y)", "%y"),  # and is a result
        ('%z: float16[4, 3] = astype(%y, dtype="float16")', "%z"),  # the user's own cast
    ],
)
def test_others_read_what_there_was(other: str, result: str) -> None:
    dtype = "float16" if "float16" in other else "float32"
    results = f"float32[3], {dtype}[4, 3]) {{"
    source = GRADIENT.replace("OTHER", other).replace("float32[3]) {", results)
    module = cast_module(source.replace("%t)", f"%t, {result})"))
    assert TO_WIDE not in casts(module)[:-1]
    assert not any(w.reason == NARROW_REASON for c in explain_autocast(module) for w in c.needs)


def test_without_a_product_nothing_is_rounded() -> None:
    module = cast_module("""
    func @main(%x: float32[4, 3]) -> float32[3] {
      %y: float32[4, 3] = exp(%x)
      %t: float32[3] = sum(%y, axis=(0,))
      return %t
    }""")
    assert casts(module) == []
