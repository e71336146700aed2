"""Run by test_training_step_ranks.py, and on CUDA by tests/cuda: steps of ours on several ranks
beside those of DistributedDataParallel, and what the ranks refuse.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from meta import distributed as dist
from meta.base.errors import ArgumentError, DistributedError
from meta.interop.torch import TorchTrainingStep, training_step
from tests.distributed import forked
from tests.interop.torch.test_training_step import (
    OPTIMIZERS,
    Images,
    assert_same,
    images,
    loss,
    matrices,
    rows,
)

CALLS = 6


def lasting(model: nn.Module) -> nn.Module:
    model.conv.weight.requires_grad_(False)
    return model.to(memory_format=torch.channels_last)


CASES: dict[str, dict[str, Any]] = {
    "adamw": {"clip_norm": 0.1, "ragged": True},
    "momentum": {"zero": 1, "accumulate": 2, "change": lasting},
    "fused": {"zero": 2, "scaler": 8.0, "overflow": 2, "model": matrices},
    "adafactor": {"zero": 2, "accumulate": 3, "clip_norm": 0.05, "model": matrices},
}


def batches(case: dict[str, Any], rank: int, device: str) -> Iterable[tuple[Tensor, Tensor]]:
    for i in range(CALLS):
        n = 3 if i % 3 == 2 and "ragged" in case else 4
        x, y = (rows if "model" in case else images)(n, seed=10 * i + rank)
        x = x * (torch.inf if rank and i == case.get("overflow") else 1.0)
        yield x.to(device), y.to(device)


def agree(name: str, rank: int, device: str) -> TorchTrainingStep:
    """Compare losses and states; then PyTorch makes a step of both, and both go on."""
    case, ranks = CASES[name], torch.distributed.get_world_size()
    torch.manual_seed(rank)  # others than those of rank 0 are written over
    model = case.get("change", lambda m: m)(case.get("model", Images)().to(device))
    pairs = [(m, OPTIMIZERS[name](m.parameters())) for m in (model, copy.deepcopy(model))]
    (model, optimizer), (other, theirs) = pairs
    ddp = DistributedDataParallel(other, find_unused_parameters=True)
    ddp.broadcast_buffers = False  # but for now
    given = {k: v for k, v in case.items() if k not in ("model", "change", "overflow", "ragged")}
    init = given.pop("scaler", None)
    scalers = [
        torch.amp.GradScaler(device, init or 1.0, growth_interval=2, enabled=init is not None)
        for _ in range(2)
    ]
    step = training_step(model, optimizer, loss, scaler=scalers[0], over="dp", **given)
    assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)
    count, clip = given.get("accumulate", 1), given.get("clip_norm")
    bound = (lambda p: nn.utils.clip_grad_norm_(p, clip)) if clip else (lambda p: None)
    near = {"rtol": 1e-4, "atol": 1e-5} if device == "cpu" else {"rtol": 1e-3, "atol": 1e-4}
    seen: list[Any] = []
    for batch in batches(case, rank, device):
        seen.append(batch)
        found = step(*batch)
        if len(seen) % count == 0:
            expected = ddp_step(ddp, theirs, seen[-count:], bound, scalers[1])
            losses = [found] if count == 1 else []
            assert_close(losses, [expected] * len(losses), **near, equal_nan=True)
    assert scalers[0].state_dict() == scalers[1].state_dict()
    parts = [x for state in optimizer.state.values() for x in state.values() if x is not None]
    whole = [x for state in theirs.state.values() for x in state.values() if x is not None]
    sizes = [sum(x.numel() for x in tensors) for tensors in (parts, whole)]
    if given.get("zero") and name != "adafactor":  # whose sums of rows and columns are whole
        assert sizes[0] < 0.7 * sizes[1]
        with pytest.raises(ArgumentError, match="parts of the optimizer's state"):
            optimizer.step()
        with pytest.raises(ArgumentError, match="otherwise than the parameter, or is a part"):
            training_step(model, optimizer, loss)
    with step.gathered():
        with pytest.raises(ArgumentError, match="outside of a block"):
            step(*seen[0])
        assert_same((model, optimizer), (other, theirs), **near)
        loss(model(seen[0][0]), seen[0][1]).backward()
        for p in model.parameters():
            if p.grad is not None:
                torch.distributed.all_reduce(p.grad.div_(ranks))
        optimizer.step()
    ddp_step(ddp, theirs, seen[:1], lambda p: None, torch.amp.GradScaler(enabled=False))
    for _ in range(count):
        step(*seen[1])
    ddp_step(ddp, theirs, [seen[1]] * count, bound, scalers[1])
    with step.gathered():
        assert_same((model, optimizer), (other, theirs), **near)
    return step


def ddp_step(
    ddp: DistributedDataParallel,
    optimizer: optim.Optimizer,
    given: list[Any],
    clip: Callable[[Any], object],
    scaler: torch.amp.GradScaler,
) -> Tensor:
    """Return the mean loss of all ranks."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(given):
        with ddp.no_sync() if i < len(given) - 1 else nullcontext():
            found = loss(ddp(x), y)
            scaler.scale(found / len(given)).backward()
    scaler.unscale_(optimizer)
    clip(ddp.parameters())
    scaler.step(optimizer)
    scaler.update()
    found = found.detach()
    torch.distributed.all_reduce(found)
    return found / torch.distributed.get_world_size()


def refuse(rank: int) -> None:
    """Inputs and settings that differ are an error on all ranks, which go on."""
    model = matrices()
    equal = optim.SGD(model.parameters(), 0.1)
    step = training_step(model, equal, loss, over="dp")
    step(*rows())
    optimizer = optim.SGD(model.parameters(), 0.1 + rank)
    for call in (
        lambda: step(*rows(4 - rank)),
        lambda: training_step(model, optimizer, loss, over="dp"),
        lambda: training_step(model, equal, loss, over="dp", clip_norm=1.0 + rank),
    ):
        with pytest.raises(DistributedError, match="the ranks do not agree on"):
            call()


def main(rank: int, count: int = 2, device: str = "cpu") -> None:
    dist.init(device, timeout=60)
    with dist.Mesh(count):
        for name in CASES:
            run = next(iter(agree(name, rank, device).executables.values()))
            if device == "cuda":
                (region,) = run.cuda_graph.regions
                assert region.graphs == 1 and not run.cuda_graph.alone, run.cuda_graph
                kept.append(run)
        if device == "cpu":
            refuse(rank)
    dist.end()
    print(f"rank {rank} of {count}: {len(CASES)} steps agree")


kept: list[Any] = []
"""Graphs are there when the processes part."""


if __name__ == "__main__" and "RANK" in os.environ:  # of torchrun
    main(int(os.environ["RANK"]), int(sys.argv[1]), "cuda")
elif __name__ == "__main__":
    for ended in forked.start(2, main, Path(sys.argv[1])).wait(200):
        print(ended["said"])
