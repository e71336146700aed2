"""Networks that need no training, with what the compiler makes of them: weights folded, joined,
tied, and cast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import meta
from meta.ir import parse_type
from meta.model import Model, trace, zoo
from meta.model.layers import BatchNorm, Conv2d, Linear


class MLP(Model):
    """Two inputs, two results by name."""

    def build(self) -> None:
        self.first, self.last = Linear(6, 16), Linear(16, 3)

    @trace
    def forward(self, x: Any, scale: Any) -> Any:
        hidden = self.first(x).relu()
        return {"logits": self.last(hidden * scale), "hidden": hidden}


class ResNet(Model):
    """A residual block whose batch normalisation is folded into the weights before it."""

    def build(self) -> None:
        self.conv1, self.norm1 = Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm(4)
        self.conv2, self.norm2 = Conv2d(4, 4, 3, padding=1, bias=False), BatchNorm(4)
        self.head = Linear(4, 5)

    @trace
    def forward(self, x: Any) -> Any:
        y = self.norm1(self.conv1(x)).relu()
        y = (self.norm2(self.conv2(y)) + y).relu()
        return self.head(y.mean(axis=(2, 3)))


def gpt2() -> Model:
    """GPT-2 with one layer; its head is tied to the embedding of tokens."""
    config = zoo.GPT2Config(
        vocab_size=20, n_positions=12, n_embd=8, n_layer=1, n_head=2,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    return zoo.GPT2LMHeadModel(config)


@dataclass(frozen=True)
class Case:
    """A network, the types of its inputs, and inputs for an extent of ``n``."""

    make: Callable[[], Model]
    types: tuple[str, ...]
    inputs: Callable[[int], list[torch.Tensor]]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "mlp": Case(MLP, ("float32[n, 6]", "float32[1]"), lambda n: [numbers(n, 6), numbers(1)]),
    "resnet": Case(ResNet, ("float32[n, 3, 6, 6]",), lambda n: [numbers(n, 3, 6, 6)]),
    "gpt2": Case(gpt2, ("int64[n, 7]",), lambda n: [torch.arange(n * 7).reshape(n, 7) % 20]),
}
MOST = 6
"""The largest extent of ``n``."""


def made(case: Case) -> Model:
    """Return the network in infer mode, with statistics that are not those of a new one."""
    meta.random.seed(3)
    model = case.make().eval()
    for i, (name, array) in enumerate(model.state().items()):
        if "running" in name:
            array.update(torch.rand(array.shape, generator=torch.Generator().manual_seed(i)) + 0.5)
    return model


def compiled(case: Case, model: Model, dynamic: bool, **options: Any) -> Any:
    """Return the network compiled for all extents of ``n``, or for n = 3."""
    if dynamic:
        types = [parse_type(t) for t in case.types]
        return meta.compile_model(model, *types, dims={"n": (1, MOST)}, **options)
    return meta.compile_model(model, *case.inputs(3), **options)


def expected(model: Model, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the model gives, run operator by operator, by the names of a module."""
    result = model(*map(meta.array, inputs))
    named = result if isinstance(result, dict) else {"output": result}
    return {name: array.torch().detach() for name, array in named.items()}
