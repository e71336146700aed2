"""Convolution networks in inference: folded, in half precision, and never of old weights."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import meta
from meta.model import Model
from meta.model.zoo import ResNet, ResNetConfig

pytestmark = pytest.mark.cuda


def network(bottleneck: bool) -> Model:
    meta.random.seed(0)
    config = ResNetConfig(layers=(1, 2, 1, 1), bottleneck=bottleneck, width=16, num_classes=8)
    model = ResNet(config)
    generator = torch.Generator().manual_seed(0)
    for name, array in model.state().items():
        if "running" in name or ".bn" in name:
            array.update(torch.rand(array.shape, generator=generator) + 0.5)
    return model.to(device="cuda").eval()


IMAGES = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def exact(model: Model) -> torch.Tensor:
    """The result in float64, operator by operator on the CPU."""
    wide = deepcopy(model).to(device="cpu", dtype="float64").eval()
    result: torch.Tensor = wide(meta.array(IMAGES.double())).torch()
    return result


def error(found: Any, expected: torch.Tensor) -> float:
    difference = found.torch().cpu().double() - expected
    return (difference.square().mean() / expected.square().mean()).sqrt().item()


@pytest.mark.parametrize("cuda_graph", [None, False])
@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("how", ["float16", "bfloat16", "autocast", "float32"])
def test_a_residual_network(how: str, bottleneck: bool, cuda_graph: bool | None) -> None:
    model = network(bottleneck)
    run: Model = model
    x = meta.array(IMAGES, device="cuda")
    if how == "autocast":
        run = meta.amp.autocast(model, "float16")
    elif how != "float32":
        model.to(dtype=how)
        x = x.to(dtype=how)
    compiled = meta.vm.compile(run, x, cuda_graph=cuda_graph)
    assert compiled.code.prepared
    limit = {"bfloat16": 4e-2, "float32": 1e-4}.get(how, 6e-3)
    for _ in range(3):
        assert error(compiled(x), exact(model)) < limit
    model.state()["layer1.0.bn1.running_var"].detach().torch().mul_(2.0)
    model.state()["fc.weight"].detach().torch().mul_(0.5)
    for _ in range(3):
        assert error(compiled(x), exact(model)) < limit


def test_recorded_by_somebody_else() -> None:
    """A graph that holds the program computes what it needs of the weights whenever it runs."""
    model = network(False)
    x = meta.array(IMAGES, device="cuda")
    compiled = meta.vm.compile(model, x)
    for _ in range(3):
        compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x)
    for factor in (1.0, 0.5):
        model.state()["layer1.0.bn1.running_var"].detach().torch().mul_(factor)
        graph.replay()
        assert error(found, exact(model)) < 1e-4
        assert error(compiled(x), exact(model)) < 1e-4


def test_another_stream_gets_what_was_prepared() -> None:
    model = network(True)
    x = meta.array(IMAGES, device="cuda")
    compiled = meta.vm.compile(model, x)
    for factor in (1.0, 2.0, 0.25):
        model.state()["conv1.weight"].detach().torch().mul_(factor)
        torch.cuda.synchronize()
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                found = compiled(x)
                torch.cuda.current_stream().synchronize()
            assert error(found, exact(model)) < 1e-4
