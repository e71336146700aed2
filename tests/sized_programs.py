"""What holds of programs of sizes of their own, on any device."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base import config
from meta.base.errors import ArgumentError
from meta.ir import parse_type
from meta.model import BatchNorm, Conv2d, Model, trace


class Network(Model):
    """A convolution, whose normalisation is folded, and a product of rows that are cut."""

    def build(self) -> None:
        self.conv, self.norm = Conv2d(3, 8, 3, padding=1), BatchNorm(8)
        self.scale = meta.ones((8,))

    @trace
    def forward(self, x: Any, y: Any) -> Any:
        x = meta.relu(self.norm(self.conv(x)))
        rows = meta.mean(x, (2, 3)) * self.scale
        return meta.softmax(rows @ meta.permute_dims(y, (1, 0)), -1), y + 1


def check(device: str, compiled: Any) -> None:
    """Compare with torch in float64. compiled: `meta.vm.compile`, for the device."""
    torch.manual_seed(0)
    model = Network().eval()
    model.to(device=device)
    types = parse_type("float32[n, 3, 8, m]"), parse_type("float32[k, 8]")
    run = compiled(model, *types, dims={"n": (1, 6), "m": (2, 40)})

    def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        state = {name: a.torch().cpu().double() for name, a in model.state().items()}
        z = F.conv2d(x.double(), state["conv.weight"], state["conv.bias"], padding=1)
        norm = (state[f"norm.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
        z = F.batch_norm(z, *norm, eps=model.norm.eps).relu().mean((2, 3)) * state["scale"]
        return (z @ y.double().T).softmax(-1)

    def call(n: int, m: int, k: int) -> None:
        x, y = torch.randn(n, 3, 8, m), torch.randn(k, 8)
        for _ in range(3):
            one, more = run(meta.array(x, device=device), meta.array(y, device=device))
            torch.testing.assert_close(
                one.torch().cpu().double(), expected(x, y), rtol=1e-4, atol=1e-5
            )
            assert torch.equal(more.torch().cpu(), y + 1)

    def given(*shape: int) -> meta.ndarray:
        return meta.zeros(shape, device=device)

    sizes = [(2, 8, 3), (6, 5, 3), (2, 8, 1), (2, 8, 3)]
    for size in sizes:
        call(*size)
    assert run.sizes == [dict(zip("nmk", size, strict=True)) for size in sizes[:3]]
    model.scale.tensor.mul_(-2)
    model.conv.weight.tensor.mul_(0.5)
    for size in sizes:
        call(*size)
    for wrong in ((7, 8), (2, 1)):
        with pytest.raises(ArgumentError, match="out of range"):
            run(given(wrong[0], 3, 8, wrong[1]), given(3, 8))
    with pytest.raises(ArgumentError, match=r"expected: float32\[k, 8\]"):
        run(given(2, 3, 8, 8), given(3))
    assert len(run.sizes) == 3

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("meta").addHandler(handler)
    try:
        with config.override(META_SIZES=4):
            call(1, 2, 1)
            assert not said
            call(3, 3, 2)
            call(3, 4, 2)
    finally:
        logging.getLogger("meta").removeHandler(handler)
    assert len(run.sizes) == 4
    assert sum("META_SIZES=4" in text for text in said) == 1


class Block(torch.nn.Module):
    """Attention of a text's words to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inputs(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


def check_torch_compile(device: str) -> None:
    """Compare an encoder of texts of any length, each of which comes often enough."""
    torch.manual_seed(0)
    layer = Block().to(device).eval()
    run = torch.compile(layer, backend="meta", dynamic=True)
    with torch.no_grad():
        for length in (5, 9, 16, 9, 5):
            for _ in range(4):
                x = torch.randn(2, length, 64, device=device)
                torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)


def check_training(device: str) -> None:
    """Compare gradients of any number of rows."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    model.to(device)
    run = torch.compile(model, backend="meta", dynamic=True)
    for rows in (3, 8, 5, *(3, 8) * 4):
        x = torch.randn(rows, 16, device=device, requires_grad=True)
        results = []
        for called in (run, model):
            model.zero_grad()
            x.grad = None
            called(x).square().sum().backward()
            assert x.grad is not None
            results.append([x.grad.clone(), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
