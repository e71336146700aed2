"""Normalisations by the root mean square that models write out are one operator, and their
gradients another, under torch.compile.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from meta.frontend.dynamo import compiler

META = torch.ops.meta


class Norm(nn.Module):
    """A form, with a weight that is not 1."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, width))
        self.eps = 1e-5


class Llama(Norm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class T5(Norm):
    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x


class Square(Norm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + self.eps) * wide * self.weight


class OnePlus(Norm):
    """As Gemma has it."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(torch.square(wide).mean([-1], keepdim=True) + self.eps)
        return (normal * (1.0 + self.weight.float())).to(x.dtype)


FORMS = [Llama, T5, Square, OnePlus]


def step(model: nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = call(x)
    (y.float() * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    found = [y.detach(), x.grad, model.weight.grad]
    model.weight.grad = None  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 8), (8,), (0, 8)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_torch(
    form: type[Norm], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = form()
    model = model.to(torch.bfloat16) if dtype == torch.bfloat16 and form is not Llama else model
    x = torch.randn(shape).to(dtype)
    exact = copy.deepcopy(model).double()
    found = step(model, torch.compile(model, backend="meta", fullgraph=True), x)
    said = step(model, model, x)
    expected = step(exact, lambda x: _in_float64(exact, x), x.double())
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for a, b, c in zip(found, said, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert_close(a.double(), c, rtol=tolerance, atol=tolerance)


def _in_float64(model: Norm, x: Tensor) -> Tensor:
    scale = 1.0 + model.weight if isinstance(model, OnePlus) else model.weight
    return x * (x.pow(2).mean(-1, keepdim=True) + model.eps).rsqrt() * scale


def targets(model: nn.Module, *inputs: Tensor) -> dict[str, list[str]]:
    with compiler.record_compiled_graphs() as graphs:
        torch.compile(model, backend="meta", fullgraph=True)(*inputs).sum().backward()
    return {g.role: [str(n.target) for n in g.graph.graph.nodes] for g in graphs}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_one_operator_each_way(form: type[Norm]) -> None:
    found = targets(form(), torch.randn(3, 8, requires_grad=True))
    assert found["forward"].count("meta.rms_norm.default") == 1
    assert found["backward"].count("meta.rms_norm_dx.default") == 1
    assert not any("rsqrt" in t for t in (*found["forward"], *found["backward"]))


class OtherAxis(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps) * self.weight


class Cube(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + self.eps) * self.weight


class OfOther(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Written(Norm):
    """x is written between the factor and the product."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        x.add_(1.0)
        return x * factor * self.weight


class Image(Norm):
    """A weight that is no vector of the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight[:, None]


@pytest.mark.parametrize("form", [OtherAxis, Cube, OfOther, Image])
def test_what_is_none_stays(form: type[Norm]) -> None:
    torch.manual_seed(0)
    x = torch.rand(8, 8, requires_grad=True)
    assert "meta.rms_norm.default" not in targets(form(), x)["forward"]
    model = form()
    assert_close(torch.compile(model, backend="meta", fullgraph=True)(x), model(x))


def test_what_is_written_meanwhile_stays() -> None:
    model, x = Written(), torch.rand(8, 8)
    with torch.no_grad(), compiler.record_compiled_graphs() as graphs:
        found = torch.compile(model, backend="meta", fullgraph=True)(x)
        assert_close(found, model(x))
    assert "meta.rms_norm.default" not in [str(n.target) for n in graphs[0].graph.graph.nodes]


def test_what_reads_a_step_too_reads_it_still() -> None:
    class Both(Norm):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            variance = x.pow(2).mean(-1, keepdim=True)
            return self.weight * (x * torch.rsqrt(variance + self.eps)), variance

    model, x = Both(), torch.randn(3, 8)
    found = torch.compile(model, backend="meta", fullgraph=True)(x)
    assert_close(found, model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8).to(dtype).requires_grad_(), torch.rand(8, requires_grad=True)
    y = META.rms_norm(x, w, 1e-6)
    wide = x.detach().double().requires_grad_()
    expected = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w.double()
    assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn(4, 8)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    gx, gw = torch.autograd.grad(expected, (wide, w), dy.double())
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert_close(dx.double(), gx, rtol=tolerance, atol=tolerance)
    assert_close(dw, gw, rtol=1e-4, atol=1e-4)
