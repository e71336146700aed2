"""The pass `repeat_shared_heads`: which calls it changes, and that results are those of torch."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.device import CPU, Device
from meta.ir import Module, parse, verify
from meta.passes import infer_type, repeat_shared_heads
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret


def program(
    layout: str, how: str, dtype: str = "float32", groups: int = 2, rows: int = 6
) -> Module:
    """Return attention of 4 heads, and its gradient."""

    def of(heads: int, steps: int) -> str:
        axes = (2, heads, steps, 8) if layout == "BHSD" else (2, steps, heads, 8)
        return f"{dtype}{list(axes)}"

    query, key, mask = of(4, rows), of(groups, 6), f"%m: {dtype}[{rows}, 6]"
    return infer_type(
        parse(f"""func @main(%q: {query}, %k: {key}, %v: {key}, %dy: {query}, {mask}) {{
          %a = fused_attention(%q, %k, %v, {how}, layout="{layout}")
          %y = %a.0
          %l = %a.1
          %d = fused_attention_dx(%q, %k, %v, {how.replace(",", ", %y, %l, %dy,", 1)}, \
layout="{layout}")
          %dq = %d.0
          %dk = %d.1
          %dv = %d.2
          return (%y, %dq, %dk, %dv)}}""")
    )


def test_only_calls_that_gain_change() -> None:
    for device, options, changes in (
        ("cpu", {}, True),
        ("cpu", {"layout": "BSHD"}, True),
        ("cpu", {"dtype": "float64"}, True),
        ("cpu", {"dtype": "float16"}, False),
        ("cpu", {"groups": 4}, False),
        ("cpu", {"rows": 1}, False),
        ("cuda:0", {}, False),
    ):
        before = program(**({"layout": "BHSD", "how": "None, causal=False"} | options))
        after = repeat_shared_heads(before, device=Device(device))
        assert (str(after) != str(before)) == changes
        assert str(after).count("= repeat(") == (4 if changes else 0)
        verify(after)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("how", ["None, causal=True", "None, causal=False", "%m, scale=0.5"])
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_results_and_gradients(layout: str, how: str, groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [(2, h, 6, 8) for h in (4, groups, groups, 4)]
    q, k, v, dy = (torch.randn(s, generator=generator) for s in sizes)
    mask = torch.randn(6, 6, generator=generator)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *wide,
        attn_mask=mask.double() if "%m" in how else None,
        is_causal="causal=True" in how,
        scale=0.5 if "scale" in how else None,
        enable_gqa=True,
    )
    expected.backward(dy.double())
    swaps = layout != "BHSD"
    given = [t.transpose(1, 2).contiguous() if swaps else t for t in (q, k, v, dy)]
    after = repeat_shared_heads(program(layout, how, groups=groups), device=CPU)
    assert "= repeat(" in str(after)
    arrays = [meta.array(t) for t in (*given, mask)]
    for found in (interpret(module_program(after), *arrays), meta.vm.compile(after)(*arrays)):
        for one, other in zip(found, (expected, *(t.grad for t in wide)), strict=True):
            x = one.torch().transpose(1, 2) if swaps else one.torch()
            torch.testing.assert_close(x.double(), other.detach(), rtol=1e-4, atol=1e-5)
