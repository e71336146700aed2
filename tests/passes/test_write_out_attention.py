"""The pass `write_out_attention`: which calls it changes, and that results are those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import meta
from meta.base.device import CPU, Device
from meta.ir import Module, parse, verify
from meta.passes import infer_type, write_out_attention
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

BATCH, HEADS, ROWS, KEYS, WIDTH, VALUE = 2, 3, 5, 7, 4, 6


def program(
    layout: str = "BHSD",
    mask: str | None = None,
    how: str = "",
    dtype: str = "float32",
    heads: int = HEADS,
    rows: int = ROWS,
    keys: int = KEYS,
) -> Module:
    """Return attention and its gradient: y, logsumexp, dq, dk, dv."""

    def of(count: int, steps: int, width: int) -> str:
        inner = [steps, count] if layout == "BSHD" else [count, steps]
        return f"{dtype}{[BATCH, *inner, width]}"

    given = {"q": of(HEADS, rows, WIDTH), "k": of(heads, keys, WIDTH), "v": of(heads, keys, VALUE)}
    given["dy"] = of(HEADS, rows, VALUE)
    if mask is not None:
        given["m"] = mask
    params = ", ".join(f"%{name}: {type_}" for name, type_ in given.items())
    m, options = "None" if mask is None else "%m", f'{how}layout="{layout}"'
    return infer_type(
        parse(f"""func @main({params}) {{
          %a = fused_attention(%q, %k, %v, {m}, {options})
          %y = %a.0
          %l = %a.1
          %d = fused_attention_dx(%q, %k, %v, {m}, %y, %l, %dy, {options})
          %dq = %d.0
          %dk = %d.1
          %dv = %d.2
          return (%y, %l, %dq, %dk, %dv)}}""")
    )


def test_only_calls_that_gain_change() -> None:
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("cpu", {}, True),
        ("cpu", {"layout": "BSHD", "how": "causal=True, "}, True),
        ("cpu", {"mask": f"bool[{BATCH}, 1, 1, {KEYS}]"}, True),
        ("cpu", {"mask": f"bool[1, {HEADS}, {ROWS}, {KEYS}]"}, True),
        ("cpu", {"keys": 511}, True),
        ("cpu", {"keys": 512}, False),
        ("cpu", {"rows": 1}, False),
        ("cpu", {"rows": 1 << 20}, False),
        ("cpu", {"rows": 0}, False),
        ("cpu", {"heads": 1}, False),
        ("cpu", {"dtype": "bfloat16"}, False),
        ("cpu", {"dtype": "float64"}, False),
        ("cpu", {"how": "window=(2, 0), "}, False),
        ("cuda:0", {}, False),
    ]
    for device, options, changes in cases:
        before = program(**options)
        after = write_out_attention(before, device=Device(device))
        assert ("fused_attention" not in str(after)) == changes, (device, options)
        assert (str(after) != str(before)) == changes
        verify(after)


SEEN = torch.rand(BATCH, HEADS, ROWS, KEYS, generator=torch.Generator().manual_seed(1)) < 0.6
SEEN[..., 0] = True
BLIND = SEEN.clone()
BLIND[1, 2, 3] = False
MASKS = {
    "none": None,
    "seen": SEEN,
    "of batches": SEEN[:, :1, :1],
    "of pairs": SEEN[0, 0],
    "a query that sees nothing": BLIND,
    "added": torch.randn(BATCH, 1, ROWS, KEYS, generator=torch.Generator().manual_seed(2)),
    "added -inf": torch.where(BLIND, 0.0, -torch.inf),
}


def oracle(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Any:
    """Return attention and the logarithms of its sums, in float64; 0 where nothing is seen."""
    scores = q @ k.mT * scale
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    if causal:
        scores = scores.masked_fill(torch.ones(ROWS, KEYS).triu(1).bool(), -torch.inf)
    sums = scores.detach().logsumexp(-1)
    blind = sums == -torch.inf
    p = scores.masked_fill(blind.unsqueeze(-1), 0).softmax(-1).masked_fill(blind.unsqueeze(-1), 0)
    return p @ v, sums.masked_fill(blind, 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_results_and_gradients(layout: str, mask: Tensor | None, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [(ROWS, WIDTH), (KEYS, WIDTH), (KEYS, VALUE), (ROWS, VALUE)]
    q, k, v, dy = (torch.randn(BATCH, HEADS, *s, generator=generator) for s in sizes)
    scale = 0.5 if causal else WIDTH**-0.5
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    additive = mask is not None and mask.dtype != torch.bool
    y, sums = oracle(*wide, mask.double() if additive and mask is not None else mask, causal, scale)
    y.backward(dy.double())
    how = "causal=True, scale=0.5, " if causal else ""
    type_ = None if mask is None else f"{str(mask.dtype)[6:]}{list(mask.shape)}"
    after = write_out_attention(program(layout, type_, how), device=CPU)
    assert "fused_attention" not in str(after)
    swaps = layout == "BSHD"
    given = [t.transpose(1, 2).contiguous() if swaps else t for t in (q, k, v, dy)]
    arrays = [meta.array(t) for t in (*given, *([] if mask is None else [mask]))]
    expected = y.detach(), sums, *(t.grad for t in wide)
    for found in (interpret(module_program(after), *arrays), meta.vm.compile(after)(*arrays)):
        for one, other in zip(found, expected, strict=True):
            x = one.torch().transpose(1, 2) if swaps and one.ndim == 4 else one.torch()
            torch.testing.assert_close(x.double(), other, rtol=1e-5, atol=1e-5)
