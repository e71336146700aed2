"""Attention with a mask, and with shared heads, is one operator of the program, forward and
backward.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from meta.frontend.dynamo import attention_operators, compiler, fuse_attention
from meta.vm.compiler.pipeline import PassContext


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fuse_attention, "ATTENTION_ON", ("cpu",))
    with PassContext(disabled=["write_out_attention"]):
        yield


class Attention(nn.Module):
    """Two heads of 4 over 5 steps."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.project, self.scale = nn.Linear(8, 24), scale

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = self.project(x).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return scaled_dot_product_attention(*parts, attn_mask=mask, scale=self.scale)


GENERATOR = torch.Generator().manual_seed(0)
MASKS = {
    "of all": torch.rand(3, 2, 5, 5, generator=GENERATOR) < 0.7,
    "of batches": torch.rand(3, 1, 1, 5, generator=GENERATOR) < 0.7,
    "of pairs": torch.rand(5, 5, generator=GENERATOR) < 0.7,
    "expanded": torch.ones(1, dtype=torch.bool).expand(3, 1, 5, 5),
    "that hides a query": torch.ones(5, 5, dtype=torch.bool).index_fill(0, torch.tensor(2), False),
    "that is added": torch.randn(3, 1, 5, 5, generator=GENERATOR),
}


@pytest.mark.product
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_it_is_torchs(mask: torch.Tensor, scale: float | None) -> None:
    torch.manual_seed(0)
    model = Attention(scale)
    other = copy.deepcopy(model)
    x = torch.randn(3, 5, 8)
    with compiler.record_compiled_graphs() as graphs:
        run = torch.compile(model, backend="meta", fullgraph=True)
        found = run(x, mask)
        found.square().sum().backward()
    expected = other(x, mask)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    programs = [str(g.for_all.executable.module) for g in graphs]
    assert ["fused_attention" in p for p in programs] == [True, True]
    assert not any("softmax" in p for p in programs)


@pytest.mark.product
@pytest.mark.parametrize("shape", [(5, 5), (1, 2, 5, 5), (3, 1, 1, 5), (2, 1, 5)], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_is_trained(dtype: torch.dtype, autocast: bool, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 2, 5, 4, generator=generator).to(dtype).requires_grad_()
    mask = torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    def run(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return scaled_dot_product_attention(q, q.flip(2), q * 2, attn_mask=mask, scale=0.7)

    with compiler.record_compiled_graphs() as graphs:
        found = torch.compile(run, backend="meta", fullgraph=True)(q, mask)
        gradients = torch.autograd.grad(found.square().sum(), (q, mask))
    halves = autocast or dtype is torch.bfloat16
    programs = [str(g.for_all.executable.module) for g in graphs]
    assert ["fused_attention" in p for p in programs] == [halves, halves]
    assert "fused_attention_dmask" not in programs[0]
    assert ("fused_attention_dmask" in programs[1]) == halves
    wide = [t.detach().double().requires_grad_() for t in (q, mask)]
    autocast = False
    expected = run(*wide)
    bounds = {"rtol": 4e-2, "atol": 4e-2} if halves else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, expected, check_dtype=False, **bounds)
    wanted = torch.autograd.grad(expected.square().sum(), wide)
    for one, right in zip(gradients, wanted, strict=True):
        bounds["atol"] = bounds["rtol"] * max(1.0, right.abs().max().item()) / 2
        torch.testing.assert_close(one, right, check_dtype=False, **bounds)


class Masked(Attention):
    """Attention whose mask is made of constants."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        places = torch.arange(5, device=x.device)
        seen = {
            "all": (places >= 0)[None, None, None].expand(3, 1, 5, 5),
            "before": (places[:, None] >= places) & torch.ones(3, 1, 5, 5).bool(),
            "behind": places[:, None] <= places,
            "zeros": torch.zeros(3, 1, 1, 5).expand(3, 1, 5, 5),
            "ones": torch.full((5, 5), 1.0),
            "drawn": torch.rand(5, 5) < 2.0,
            "lowered": torch.where(places[:, None] >= places, 0.0, -65500.0).expand(3, 1, 5, 5),
            "near": (places[:, None] - places).abs() < 2,
        }[self.mask]
        return super().forward(x, seen)


@pytest.mark.product
@pytest.mark.parametrize("trains", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(
    ("mask", "stays"),
    [
        ("all", False),
        ("zeros", False),
        ("before", False),  # causal
        ("lowered", False),
        ("near", True),  # of PyTorch's kernels, none has a window
        ("behind", True),
        ("ones", True),
        ("drawn", True),
    ],
)
def test_masks_that_hide_nothing_are_left_out(mask: str, stays: bool, trains: bool) -> None:
    torch.manual_seed(0)
    model = Masked(mask).requires_grad_(trains)
    other = copy.deepcopy(model)
    x = torch.randn(3, 5, 8)
    with compiler.record_compiled_graphs() as graphs:
        found = torch.compile(model, backend="meta", fullgraph=True)(x)
        if trains:
            found.square().sum().backward()
    expected = other(x)
    torch.testing.assert_close(found, expected)
    if trains:
        expected.square().sum().backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    calls = [
        node.args[[a.name for a in node.target._schema.arguments].index("attn_bias")]
        for graph in graphs
        for node in graph.graph.graph.nodes
        if "efficient_attention" in str(node.target)
    ]
    assert len(calls) == 1 + trains and all((mask is not None) == stays for mask in calls)


class Grouped(nn.Module):
    """Six heads of 4 over 5 steps, of which three share a key and a value."""

    def __init__(self, repeat: str, causal: bool = False) -> None:
        super().__init__()
        self.query, self.both = nn.Linear(8, 24), nn.Linear(8, 16)
        self.repeat, self.causal = repeat, causal

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        b, h, s, d = x.shape
        if self.repeat == "index":
            return x[:, :, None, :, :].expand(b, h, 3, s, d).reshape(b, h * 3, s, d)
        if self.repeat == "short index":
            return x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(b, -1, s, d)
        if self.repeat == "unsqueeze":
            return x.unsqueeze(2).expand(b, h, 3, s, d).reshape(b, h * 3, s, d)
        if self.repeat == "interleave":
            return x.repeat_interleave(3, 1)
        if self.repeat == "function":
            return torch.repeat_interleave(x, 3, dim=-3)
        if self.repeat == "tiled":  # other heads share
            return x[:, None].expand(b, 3, h, s, d).reshape(b, h * 3, s, d)
        if self.repeat == "broadcast":
            return x[:, :1]
        if self.repeat == "written":
            y = x.repeat_interleave(3, 1)
            y[:, 1].mul_(2)
            return y
        return x

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, s, _ = x.shape
        q = self.query(x).view(b, s, 6, 4).transpose(1, 2)
        k, v = self.both(x).view(b, s, 2, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        k = k + torch.sin(k)
        k, v = self.repeated(k), self.repeated(v)
        gqa = self.repeat == "flag"
        y = scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, enable_gqa=gqa)
        return y.transpose(1, 2).reshape(b, s, -1)


REPEATS = {
    **dict.fromkeys(("index", "short index", "unsqueeze", "interleave", "function"), True),
    **dict.fromkeys(("flag", "broadcast"), True),
    **dict.fromkeys(("tiled", "written"), False),
}


def programs_of(
    model: nn.Module, args: tuple[torch.Tensor, ...], dtype: torch.dtype | None = None
) -> list[str]:
    """Compare results and gradients with PyTorch's; return the programs."""
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    wide = [a.double() if a.is_floating_point() else a for a in args]

    def both(f: nn.Module, given: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype, enabled=dtype is not None and f is not exact):
            y = f(*given)
        y.double().square().sum().backward()
        return [y.detach(), *(p.grad for p in f.parameters())]

    with compiler.record_compiled_graphs() as graphs:
        found = both(torch.compile(model, backend="meta", fullgraph=True), list(args))
    for a, b, c in zip(found, both(exact, wide), both(eager, list(args)), strict=True):
        largest = b.abs().max()
        bound = 1e-5 * largest + 4 * (c - b).abs().max()
        assert (a - b).abs().max() <= bound
    return [str(g.for_all.executable.module) for g in graphs]


@pytest.mark.product
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("repeat", REPEATS)
def test_heads_that_are_shared_are_not_saved_repeated(repeat: str, causal: bool) -> None:
    """For the CPU the pass `repeat_shared_heads` repeats them where they are read."""
    torch.manual_seed(0)
    programs = programs_of(Grouped(repeat, causal), (torch.randn(3, 5, 8),))
    if REPEATS[repeat]:
        assert all("fused_attention" in p for p in programs)
        assert not any("3, 2, 3, 5, 4" in p for p in programs)
        assert [p.count("tvm.repeat(") for p in programs] == [2, 2]


@pytest.mark.product
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_shared_heads_with_a_mask(mask: torch.Tensor, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    if mask.ndim == 4 and mask.shape[1] == 2:
        mask = mask.repeat(1, 3, 1, 1)
    programs = programs_of(Grouped("index"), (torch.randn(3, 5, 8), mask), dtype)
    assert all("fused_attention" in p for p in programs)


class Windowed(Grouped):
    """Shared heads with a mask that a model makes of positions, as of a sliding window."""

    def __init__(self, back: int, ahead: int, numbers: bool) -> None:
        super().__init__("index")
        self.back, self.ahead, self.numbers = back, ahead, numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], 1, -1)
        distance = places[..., None, :] - places[..., None]
        seen = (distance <= self.ahead) & (distance >= -self.back)
        return super().forward(x, torch.where(seen, 0.0, -1e9) if self.numbers else seen)


@pytest.mark.product
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize(
    ("back", "ahead", "option"),
    [
        (2, 0, "window=(2, -1)"),
        (1, 2, "window=(1, 2)"),
        (9, 1, "window=(-1, 1)"),
        (9, 0, "causal=True"),
        (9, 9, ""),
    ],
)
def test_windows_of_shared_heads(back: int, ahead: int, option: str, numbers: bool) -> None:
    torch.manual_seed(0)
    programs = programs_of(Windowed(back, ahead, numbers), (torch.randn(3, 5, 8),))
    for program in programs:
        (call,) = (line for line in program.splitlines() if "fused_attention" in line)
        assert option in call and "bool[" not in call
        assert ("window" in call) == ("window" in option)
        assert ("causal=True" in call) == (ahead == 0)


def test_shared_heads_of_any_length() -> None:
    torch.manual_seed(0)
    model = Grouped("index")
    run = torch.compile(model, backend="meta", fullgraph=True, dynamic=True)
    for steps in (5, 6, 9):
        x = torch.randn(3, steps, 8)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_shared_heads_run_in_pytorch_too(masked: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, h, 5, 4, dtype=torch.float64) for h in (6, 2, 2))
    mask = torch.rand(5, 5) < 0.7 if masked else None
    given = (q, k, v, mask, not masked, 0.3, False)
    torch.library.opcheck(torch.ops.meta.fused_attention.default, given)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    assert torch.autograd.gradcheck(
        lambda *t: attention_operators.fused_attention(*t, *given[3:])[0], (q, k, v)
    )
    expected = scaled_dot_product_attention(
        q, k, v, mask, 0.0, not masked, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(torch.ops.meta.fused_attention(*given)[0], expected)
