"""Extents that vary: programs compute with them, and refuse those that they are not for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.base.errors import ArgumentError
from meta.frontend import from_torch
from meta.frontend.aten import AtenError

N = torch.export.Dim("n", min=3, max=64)


class Computing(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        n = x.shape[0]
        y = torch.cat([x, x]).view(n * 2, -1)[: n + 1]
        return y * (n // 2) + torch.arange(n + 1)[:, None], y.new_zeros(max(n - 1, 2))


@pytest.fixture(scope="module")
def model() -> Any:
    return from_torch(Computing(), (torch.randn(5, 4),), dynamic_shapes=({0: N},))


@pytest.mark.parametrize("n", [3, 6, 64])
def test_extents_are_numbers_in_the_program(model: Any, n: int) -> None:
    x = torch.randn(n, 4)
    for found, wanted in zip(model(meta.array(x)), Computing()(x), strict=True):
        torch.testing.assert_close(found.torch(), wanted)


@pytest.mark.parametrize("n", [2, 65])
def test_extents_out_of_range(model: Any, n: int) -> None:
    with pytest.raises(ArgumentError, match="out of the range") as caught:
        model(meta.ones((n, 4)))
    assert caught.value.expected == "3 to 64" and "axis 0 of the input 'x'" in str(caught.value)


def test_other_shapes(model: Any) -> None:
    for shape in ((5, 3), (5, 4, 1)):
        with pytest.raises(ArgumentError, match="has the shape"):
            model(meta.ones(shape))


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        n = x.shape[0]
        return {"twice": 2 * n, "large": n > 2, "half": n / 2, "y": x + n}


@pytest.mark.parametrize("n", [3, 7])
def test_results_that_are_numbers(n: int) -> None:
    model = from_torch(Numbers(), (torch.ones(5),), dynamic_shapes=({0: N},))
    found, wanted = model(meta.ones(n)), Numbers()(torch.ones(n))
    torch.testing.assert_close(found.pop("y").torch(), wanted.pop("y"))
    assert found == wanted and list(map(type, found.values())) == [int, bool, float]


class Reading(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.sum().item(), x


def test_a_number_that_values_decide_is_refused() -> None:
    model = from_torch(Reading(), (torch.ones(5),))
    with pytest.raises(AtenError, match="depends on the values of inputs"):
        model(meta.ones(5))


class Halving(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.view(-1, 2).sum(1) + y


def test_extents_that_are_computed_of_others() -> None:
    half = torch.export.Dim("half", min=2, max=50)
    model = from_torch(
        Halving(), (torch.randn(8), torch.randn(4)), dynamic_shapes=({0: 2 * half}, {0: half})
    )
    x, y = torch.randn(12), torch.randn(6)
    found = model(meta.array(x), meta.array(y))
    torch.testing.assert_close(found.torch(), Halving()(x, y))
    with pytest.raises(ArgumentError, match="is 2\\*s"):
        model(meta.ones(13), meta.ones(6))


class Summing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, k: int) -> Any:
        return (x + y) * k


def test_one_extent_of_two_inputs_and_numbers_that_vary() -> None:
    auto = torch.export.Dim.DYNAMIC
    model = from_torch(
        Summing(), (torch.randn(8), torch.randn(8), 3), dynamic_shapes=({0: auto}, {0: auto}, auto)
    )
    torch.testing.assert_close(model(meta.ones(5), meta.ones(5), 7).torch(), torch.full((5,), 14.0))
    with pytest.raises(ArgumentError, match="are one extent"):
        model(meta.ones(5), meta.ones(6), 7)


def test_compiled_once_for_all_extents() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LayerNorm(3))
    model = from_torch(module, (torch.randn(5, 4),), dynamic_shapes={"input": {0: N}})
    executable = meta.vm.compile(model, meta.ir.parse_type("float32[n, 4]"), dims={"n": (3, 64)})
    for n in (3, 17):
        x = torch.randn(n, 4)
        torch.testing.assert_close(
            executable(meta.array(x)).torch(), module(x).detach(), rtol=1e-4, atol=1e-5
        )
