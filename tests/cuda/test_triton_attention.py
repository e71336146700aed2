"""Attention with dropout, windows and slopes in Triton, on a GPU, beside torch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config

# PyTorch's thread of gradients has no context before its first product.
THREAD = pytest.mark.filterwarnings(
    "ignore:Attempting to run cuBLAS, but there was no current CUDA"
)
pytestmark = [pytest.mark.cuda, THREAD]
pytest.importorskip("triton")

BOUNDS = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 2e-4}
SHAPES = {
    "gpt2": (2, 4, 512, 64, 4, 512, 64),
    "odd": (1, 4, 301, 80, 2, 123, 48),
    "wide": (1, 2, 200, 256, 1, 300, 256),
    "narrow": (3, 2, 65, 16, 2, 129, 16),
}
"""Batches, heads, queries, width; heads of keys, keys, width of values."""
OPTIONS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout_p": 0.1},
    "causal": {"causal": True, "dropout_p": 0.3, "layout": "BSHD"},
    "window": {"window": (70, 20), "causal": False},
    "slopes": {"causal": True, "slopes": 1},
    "all": {"window": (100, -1), "slopes": 2, "dropout_p": 0.2, "mask": True},
}


def prepared(
    shape: tuple[int, ...], dtype: torch.dtype, how: dict[str, Any]
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return query, key, value and dy with heads first, and options; slopes and mask as tensors."""
    b, h, l, d, g, s, e = shape  # noqa: E741
    generator = torch.Generator().manual_seed(0)
    shapes = (b, h, l, d), (b, g, s, d), (b, g, s, e), (b, h, l, e)
    tensors = [torch.randn(x, generator=generator).to("cuda", dtype) for x in shapes]
    how = dict(how)
    if axes := how.get("slopes"):
        how["slopes"] = (torch.rand((b, h)[2 - axes :], generator=generator) * 0.2).cuda()
    if how.pop("mask", False):
        how["mask"] = torch.rand((b, 1, l, s), generator=generator).cuda() > 0.2
    if "dropout_p" in how:
        how["dropout_key"] = torch.tensor([2**35 + 11], device="cuda")
    return tensors, how


def expected(tensors: list[torch.Tensor], how: dict[str, Any]) -> list[torch.Tensor]:
    """Return the result and the gradients of query, key and value, in float64."""
    query, key, value, dy = (t.double() for t in tensors)
    leaves = [t.requires_grad_() for t in (query, key, value)]
    share = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(share, 1).mT * query.shape[-1] ** -0.5
    rows, keys = (torch.arange(n, device="cuda") for n in scores.shape[-2:])
    distance = keys - rows[:, None]
    if "slopes" in how:
        scores = scores - how["slopes"].double()[..., None, None] * distance.abs()
    left, right = how.get("window", (-1, -1))
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    hidden |= (distance > 0) if how.get("causal") else hidden
    hidden |= (distance > right) if right >= 0 else hidden
    hidden |= (distance < -left) if left >= 0 else hidden
    if "mask" in how:
        hidden = hidden | ~how["mask"]
    blind = hidden.expand(scores.shape).all(-1, keepdim=True)
    p = scores.masked_fill(hidden, -torch.inf).masked_fill(blind, 0.0).softmax(-1)
    p = p.masked_fill(blind, 0.0)
    if "dropout_key" in how:
        mask = meta.dropout_mask(meta.array(how["dropout_key"]), tuple(p.shape), how["dropout_p"])
        p = p * mask.torch() / (1 - how["dropout_p"])
    y = p @ value.repeat_interleave(share, 1)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_against_float64(dtype: torch.dtype, shape: str, options: str) -> None:
    tensors, how = prepared(SHAPES[shape], dtype, OPTIONS[options])
    later = how.get("layout") == "BSHD"

    def placed(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous() if later else x

    wanted = expected(tensors, how)
    query, key, value, dy = (meta.array(placed(t)) for t in tensors)
    given = {n: meta.array(v) if isinstance(v, torch.Tensor) else v for n, v in how.items()}
    mask = given.pop("mask", None)
    with config.override(META_TF32=False):
        y, logsumexp = meta.op.triton.fused_attention(query, key, value, mask, **given)
        dx = meta.op.triton.fused_attention_dx(query, key, value, mask, y, logsumexp, dy, **given)
    for found, right in zip((y, *dx), wanted, strict=True):
        bound = BOUNDS[dtype] * max(1.0, right.abs().max().item())
        torch.testing.assert_close(
            placed(found.torch()).double(), right, rtol=BOUNDS[dtype], atol=bound
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_it_is_what_runs(dtype: str) -> None:
    """A compiled step of attention with dropout runs here, in one CUDA graph, without scores."""
    b, h, s, d = 2, 4, 512, 64

    class Attention(meta.Model):
        def build(self) -> None:
            self.parts = [
                meta.array(torch.randn(b, h, s, d).to("cuda", getattr(torch, dtype)))
                for _ in range(3)
            ]
            for part in self.parts:
                part.requires_grad = True

        @meta.model.trace
        def forward(self) -> Any:
            return op.scaled_dot_product_attention(*self.parts, None, 0.2, True)

    dy = meta.array(torch.randn(b, h, s, d).to("cuda", getattr(torch, dtype)))
    step = meta.vm.compile(meta.model.value_and_grad(Attention()), dy)
    assert {"triton.fused_attention", "triton.fused_attention_dx"} <= set(step.kernels())
    assert step.memory().arena < b * h * s * s
    meta.random.seed(1)
    runs = [step(dy)[0].torch() for _ in range(2)]
    meta.random.seed(1)
    torch.testing.assert_close(step(dy)[0].torch(), runs[0], rtol=0, atol=0)
    assert not torch.equal(*runs)


@pytest.mark.parametrize("written", ["places", "distances"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_alibi_that_is_written_out(dtype: torch.dtype, written: str) -> None:
    """Of the place of keys, as Bloom's, or of the distance: the kernel reads no numbers."""
    b, h, s, d = 2, 4, 256, 64
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    rows, keys = torch.arange(s)[:, None], torch.arange(s)
    numbers = slopes[:, None, None] * (keys if written == "places" else keys - rows)
    parts = [torch.randn(b, h, s, d).to("cuda", dtype) for _ in range(3)]

    @meta.model.trace
    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ op.permute_dims(key, (0, 1, 3, 2)) * 0.125
        scores = op.astype(scores, "float32") + meta.array(numbers, device="cuda")
        scores = op.where(meta.array(keys > rows, device="cuda"), -1e9, scores)
        return op.astype(op.softmax(scores), query.dtype) @ value

    arrays = [*map(meta.array, parts)]
    run = meta.vm.compile(attention, *arrays)
    assert run.kernels()["triton.fused_attention"] == 1 and "slopes=" in str(run.module)
    scores = parts[0].double() @ parts[1].double().mT * 0.125 + numbers.cuda().double()
    weights = scores.masked_fill((keys > rows).cuda(), -torch.inf).softmax(-1)
    wanted = weights @ parts[2].double()
    found = run(*arrays).torch().double()
    torch.testing.assert_close(found, wanted, rtol=BOUNDS[dtype], atol=2 * BOUNDS[dtype])
