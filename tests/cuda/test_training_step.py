"""`meta.interop.torch.training_step` on CUDA, as CUDA graphs, beside PyTorch's own steps."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.testing import assert_close

from meta.base.errors import ArgumentError
from meta.interop.torch import training_step
from tests.interop.torch.test_training_step import OPTIMIZERS, Images, images

pytestmark = [
    pytest.mark.cuda,
    # PyTorch's own, of the first product in its thread for gradients.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no:UserWarning"),
]
MODES: dict[str, dict[str, Any]] = {
    "float32": {},
    "clipped": {"clip_norm": 0.1},
    "bfloat16": {"autocast": torch.bfloat16},
    "float16": {"autocast": torch.float16, "scaler": torch.amp.GradScaler},
    "overflow": {"scaler": lambda: torch.amp.GradScaler(init_scale=2.0**127)},
}


HALF = {"rtol": 5e-2, "atol": 5e-2}


def pair(make: Any, channels_last: bool) -> list[tuple[nn.Module, optim.Optimizer]]:
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    first = Images().cuda().to(memory_format=layout)
    return [(m, make(m.parameters())) for m in (first, copy.deepcopy(first))]


def fused(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.AdamW(parameters, 0.01, fused=True)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_steps_are_those_of_torch(mode: str, channels_last: bool) -> None:
    given = dict(MODES[mode])
    (model, optimizer), (other, of_torch) = pair(fused, channels_last)
    make = given.pop("scaler", lambda: torch.amp.GradScaler(enabled=False))
    scalers = [make(), make()]
    step = training_step(model, optimizer, functional.cross_entropy, scaler=scalers[0], **given)
    where = [t.data_ptr() for t in model.state_dict().values()]
    dtype = given.get("autocast")
    bounds: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4} if dtype is None else HALF
    for i in range(5):
        x, y = (t.cuda() for t in images(16, seed=i))
        found = step(x, y)
        of_torch.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            expected = functional.cross_entropy(other(x), y)
        scalers[1].scale(expected).backward()
        scalers[1].unscale_(of_torch)
        if "clip_norm" in given:
            nn.utils.clip_grad_norm_(other.parameters(), given["clip_norm"])
        scalers[1].step(of_torch)
        scalers[1].update()
        assert_close(found, expected.detach(), **bounds)
        assert scalers[0].state_dict() == scalers[1].state_dict()
    assert [t.data_ptr() for t in model.state_dict().values()] == where
    assert_close(model.state_dict(), other.state_dict(), **bounds)
    own, theirs = (o.state_dict()["state"] for o in (optimizer, of_torch))
    assert_close(own, theirs, **bounds)
    (executable,) = step.executables.values()
    assert executable.cuda_graph and not executable.cuda_graph.alone


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    """Those that count on the host, too; learning rates change between replays."""
    (model, optimizer), (other, of_torch) = pair(OPTIMIZERS[name], False)
    step = training_step(model, optimizer, functional.cross_entropy)
    for i in range(5):
        x, y = (t.cuda() for t in images(16, seed=i))
        for group in (*optimizer.param_groups, *of_torch.param_groups):
            group["lr"] *= 0.7
        found = step(x, y)
        of_torch.zero_grad()
        expected = functional.cross_entropy(other(x), y)
        expected.backward()
        of_torch.step()
        assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
    assert_close(model.state_dict(), other.state_dict(), rtol=1e-3, atol=1e-4)
    own, theirs = (o.state_dict()["state"] for o in (optimizer, of_torch))
    assert own.keys() == theirs.keys()
    for number, state in theirs.items():
        tensors = {k: v for k, v in state.items() if v is not None}
        assert_close({k: own[number][k] for k in tensors}, tensors, rtol=1e-3, atol=1e-4)


def test_a_scaler_needs_counts_on_the_device() -> None:
    (model, optimizer), _ = pair(OPTIMIZERS["adamw"], False)
    with pytest.raises(ArgumentError, match="counts its steps on the host"):
        training_step(model, optimizer, functional.cross_entropy, scaler=torch.amp.GradScaler())
