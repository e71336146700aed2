"""Attention blocks on CUDA as few kernels: projections in one product, gradients where they belong;
losses of padded scores.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.model import Model, trace, value_and_grad
from meta.model.layers import LayerNorm, Linear

pytestmark = pytest.mark.cuda


class Block(Model):
    """A transformer's block that normalises first; ``joined``: one layer for all projections."""

    def build(self, width: int, joined: bool) -> None:
        self.joined, self.width = joined, width
        if joined:
            self.projections = Linear(width, 3 * width)
        else:
            self.query, self.key, self.value = (Linear(width, width) for _ in range(3))
        self.out, self.norm = Linear(width, width), LayerNorm(width)

    @trace
    def forward(self, x: Any) -> Any:
        n, steps, width = x.shape
        y = self.norm(x)
        parts = (
            op.split(self.projections(y), 3, 2)
            if self.joined
            else [layer(y) for layer in (self.query, self.key, self.value)]
        )
        heads = [op.reshape(p, (n, steps, 2, width // 2)) for p in parts]
        y = op.fused_attention(*heads, causal=True, layout="BSHD")[0]
        return op.add(self.out(op.reshape(y, x.shape)), x)


class Stack(Model):
    """Two blocks, normalised: what goes around them in the backward pass is in half precision."""

    def build(self, width: int, joined: bool) -> None:
        self.first, self.second = Block(width, joined), Block(width, joined)
        self.last = LayerNorm(width)

    @trace
    def forward(self, x: Any) -> Any:
        return self.last(self.second(self.first(x)))


def expected(model: Stack, x: torch.Tensor, dy: torch.Tensor) -> tuple[Any, dict[str, Any]]:
    """Return result and gradients of the parameters, by torch in float64 on the CPU."""
    named = dict(model.named_parameters())
    state = {n: torch.tensor(a.numpy()).double().requires_grad_() for n, a in named.items()}
    y = x.cpu().double()
    for name, block in (("first", model.first), ("second", model.second)):
        own = {n.removeprefix(f"{name}."): a for n, a in state.items()}
        y = apply(block, own, y)
    y = F.layer_norm(y, y.shape[-1:], state["last.weight"], state["last.bias"])
    found = torch.autograd.grad(y, list(state.values()), dy.cpu().double())
    return y.detach(), dict(zip(state, found, strict=True))


def apply(block: Block, state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return a block's result by torch."""
    width = block.width
    y = F.layer_norm(x, (width,), state["norm.weight"], state["norm.bias"])
    names = ["projections"] if block.joined else ["query", "key", "value"]
    parts = [F.linear(y, state[f"{n}.weight"], state[f"{n}.bias"]) for n in names]
    parts = list(parts[0].chunk(3, 2)) if block.joined else parts
    heads = [p.unflatten(2, (2, width // 2)).transpose(1, 2) for p in parts]
    y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
    return F.linear(y, state["out.weight"], state["out.bias"]) + x


def near(found: torch.Tensor, correct: torch.Tensor, tolerance: float) -> None:
    difference = (found.cpu().double() - correct).abs().max()
    assert difference <= tolerance * correct.abs().max(), difference


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("joined", [True, False])
def test_inference_and_gradients(joined: bool, dtype: str) -> None:
    meta.random.seed(0)
    torch.manual_seed(0)
    model = Stack(128, joined).to(device="cuda")
    x, dy = (torch.randn(2, 64, 128, device="cuda") for _ in range(2))
    y, gradients = expected(model, x, dy)
    tolerance = 1e-2 if dtype == "float16" else 5e-2
    step = meta.amp.autocast(value_and_grad(model), dtype)
    arguments = meta.array(dy), meta.array(x)
    compiled = meta.vm.compile(step, *arguments)
    kernels = set(compiled.kernels())
    assert {"cuda.layer_norm_dx_sum", "cuda.layer_norm_dx_add_sum"} <= kernels
    of_rows = any("attention_of_rows" in name for name in kernels)  # they need no split
    assert ("cublas.dense_bias_split" in kernels or of_rows) == joined
    for _ in range(3):  # by kernels, while a graph is recorded, and replayed
        value, found = compiled(*arguments)
        near(value.torch(), y, tolerance)
        for name, correct in gradients.items():
            if not name.endswith("key.bias"):  # which is 0
                near(found[name].torch(), correct, tolerance)
    inference = meta.amp.autocast(model.eval(), dtype)
    compiled = meta.vm.compile(inference, meta.array(x))
    kernels = set(compiled.kernels())  # attention reads the joint projection
    assert any("attention" in name for name in kernels) and "cublas.dense_bias_split" not in kernels
    for _ in range(3):
        near(compiled(meta.array(x)).torch(), y, tolerance)


@pytest.mark.parametrize("bias", [True, False])
def test_a_loss_of_padded_scores(bias: bool) -> None:
    meta.random.seed(0)
    torch.manual_seed(0)

    class Head(Model):
        def build(self) -> None:
            self.last = Linear(256, 4099, bias)

        @trace
        def forward(self, x: Any, labels: Any) -> Any:
            return op.cross_entropy(self.last(x), labels)

    model = Head().to(device="cuda")
    x = torch.randn(1024, 256, device="cuda")
    labels = torch.randint(4099, (1024,), device="cuda")
    labels[:4] = torch.tensor([-100, -1, 4099, 4103])
    step = meta.amp.autocast(value_and_grad(model), "float16")
    arguments = meta.array(1.0, device="cuda"), meta.array(x), meta.array(labels)
    compiled = meta.vm.compile(step, *arguments)
    named = dict(model.named_parameters())
    state = {n: torch.tensor(a.numpy()).double().requires_grad_() for n, a in named.items()}
    known = torch.where((labels >= 0) & (labels < 4099), labels, -100).cpu()
    scores = F.linear(x.cpu().double(), state["last.weight"], state.get("last.bias"))
    loss = F.cross_entropy(scores, known)
    gradients = torch.autograd.grad(loss, list(state.values()))
    for _ in range(3):
        value, found = compiled(*arguments)
        near(value.torch(), loss.detach(), 2e-3)
        for name, correct in zip(state, gradients, strict=True):
            near(found[name].torch(), correct, 1e-2)
