"""Gradients of attention in half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.ir import Call
from meta.model import Model, trace, value_and_grad
from meta.model.layers import Linear


class Attention(Model):
    """Self-attention; heads of query share keys and values where there are fewer of these."""

    def build(self, heads: int, groups: int, layout: str) -> None:
        self.heads, self.groups, self.layout = heads, groups, layout
        self.query = Linear(16, heads * 8)
        self.key, self.value = (Linear(16, groups * 8) for _ in range(2))

    @trace
    def forward(self, x: Any) -> Any:
        n, steps, _ = x.shape
        parts = []
        for layer, heads in (
            (self.query, self.heads),
            (self.key, self.groups),
            (self.value, self.groups),
        ):
            part = op.reshape(layer(x), (n, steps, heads, 8))
            parts.append(part if self.layout == "BSHD" else op.permute_dims(part, (0, 2, 1, 3)))
        return op.fused_attention(*parts, causal=True, layout=self.layout)[0]


def calls(program: Any) -> list[str]:
    bindings = program.module.main.body.bindings
    return [b.value.callee.name for b in bindings if isinstance(b.value, Call)]


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_are_right(dtype: str, heads: int, groups: int, layout: str) -> None:
    meta.random.seed(0)
    torch.manual_seed(0)
    model = Attention(heads, groups, layout)
    step = value_and_grad(model)
    mixed = meta.amp.autocast(step, dtype)
    x = meta.array(torch.randn(2, 6, 16))
    dy = meta.array(torch.randn(model(x).shape))
    for program in step.program(dy, x), mixed.program(dy, x):  # offsets are the kernels' matter
        assert not {"subtract", "mean", "repeat"} & set(calls(program))
    y, gradients = meta.vm.compile(mixed, dy, x)(dy, x)
    expected = reference(model, x.torch().double(), dy.torch().double())
    tolerance = 4e-3 if dtype == "float16" else 3e-2
    for name, correct in expected.items():
        if name == "key.bias":
            continue  # an offset of all scores of a query, whose gradient is 0
        one = gradients[name] if name else y
        scale = correct.abs().max()
        difference = (one.torch().double() - correct).abs().max()
        assert difference <= tolerance * scale, (difference, scale)


def reference(model: Any, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the result and the gradients of the parameters by name, by torch in float64."""
    state = {n: a.detach().torch().double().requires_grad_() for n, a in model.named_parameters()}
    parts = []
    for name, heads in (("query", model.heads), ("key", model.groups), ("value", model.groups)):
        y = F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])
        y = y.view(*x.shape[:2], heads, 8).transpose(1, 2)
        parts.append(y.repeat_interleave(model.heads // heads, 1))
    y = F.scaled_dot_product_attention(*parts, is_causal=True)
    y = y.transpose(1, 2) if model.layout == "BSHD" else y
    found = torch.autograd.grad(y, list(state.values()), dy)
    return {"": y.detach(), **dict(zip(state, found, strict=True))}
