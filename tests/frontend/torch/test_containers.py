"""Objects that hold tensors: results and inputs of modules."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend import from_torch

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Result:
    y: Any
    more: list[Any]
    name: str = "result"


@dataclass(frozen=True)
class Frozen:
    y: Any
    count: int = 2


class Layer:
    """What a cache keeps of a layer."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.dtype = torch.float32

    def update(self, x: Any) -> Any:
        self.keys = x.clone() if self.keys is None else torch.cat([self.keys, x], 0)
        return self.keys


@dataclass
class Cache:
    """As those of libraries: filled in place by layers."""

    layers: list[Layer] = field(default_factory=lambda: [Layer()])


def close(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.torch(), wanted.detach(), rtol=1e-5, atol=1e-5)


class Returning(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("compiled", [False, True])
def test_results_of_many_classes(compiled: bool) -> None:
    def results(x: Any) -> Any:
        return {
            "object": Result(x + 1, [x * 2, (x * 3, None)]),
            "frozen": Frozen(x - 1),
            "named": Pair(x, "text"),
            "ordered": OrderedDict(a=x),
            "values": (1, 2.5, "text", None, x.shape[0]),
        }

    module, x = Returning(results), torch.randn(2, 3)
    model = from_torch(module, (x,))
    found = (meta.vm.compile(model, meta.array(x)) if compiled else model)(meta.array(x))
    assert isinstance(found["object"], Result) and found["object"].name == "result"
    close(found["object"].y, x + 1)
    close(found["object"].more[1][0], x * 3)
    assert isinstance(found["frozen"], Frozen) and found["frozen"].count == 2
    close(found["frozen"].y, x - 1)
    assert isinstance(found["named"], Pair) and found["named"].second == "text"
    close(found["ordered"]["a"], x)
    assert found["values"] == (1, 2.5, "text", None, 2)


class Decoder(nn.Module):
    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> tuple[Any, Cache]:
        cache = Cache() if cache is None else cache
        return cache.layers[0].update(x).sum(0), cache


def test_a_cache_goes_out_and_in_again() -> None:
    module, x = Decoder(), torch.randn(2, 3)
    first = from_torch(module, (x,))
    y, cache = first(meta.array(x))
    assert isinstance(cache, Cache) and isinstance(cache.layers[0], Layer)
    _, own = module(x)
    kept = own.layers[0].keys.clone()
    rows = torch.export.Dim("rows", min=1, max=9)
    following = from_torch(module, (x, own), dynamic_shapes={"x": None, "cache": [{0: rows}]})
    assert torch.equal(own.layers[0].keys, kept)  # the example is as it was
    for _ in range(2):
        wanted, own = module(x, own)
        y, cache = following(meta.array(x), cache)
        close(y, wanted)
        close(cache.layers[0].keys, own.layers[0].keys)
    with pytest.raises(meta.errors.ArgumentError, match="another structure"):
        following(meta.array(x), Cache([]))


def test_a_saved_program_returns_dicts(tmp_path: Any) -> None:
    module, x = Returning(lambda x: Result(x + 1, [x])), torch.randn(2)
    meta.vm.compile(from_torch(module, (x,)), meta.array(x)).save(tmp_path / "program")
    found = meta.vm.load(tmp_path / "program")(meta.array(x))
    assert sorted(found) == ["more", "name", "y"] and found["name"] == "result"
    close(found["y"], x + 1)


def test_inputs_that_are_no_tensors() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, times: int, how: str = "add", bias: Any = None) -> Any:
            y = x * times
            return y + 1 if how == "add" else y

    x = torch.randn(3)
    model = from_torch(Scaled(), (x, 3), {"how": "add", "bias": None})
    close(model(meta.array(x), 3, how="add", bias=None), x * 3 + 1)
    with pytest.raises(meta.errors.ArgumentError, match="one value of the input 'times'"):
        model(meta.array(x), 4, how="add", bias=None)
    with pytest.raises(meta.errors.ArgumentError, match="another dtype"):
        model(meta.array([1, 2, 3]), 3, how="add", bias=None)
