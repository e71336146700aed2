"""``optimizer.param_groups`` and torch's schedulers on our optimizers: rates as of torch's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

import meta
from meta.base.errors import ArgumentError, UnknownName

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 3]),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: 1 / (t + 1)),
    "warm-up from 0": lambda o: schedulers.LambdaLR(o, lambda t: t / 3),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=8, cycle_momentum=False),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o), schedulers.ExponentialLR(o, 0.9)], [2]
    ),
}


def rates(optimizer: Any, make: Callable[[Any], Any], groups: Any) -> list[list[float]]:
    scheduler, found = make(optimizer), []
    for _ in range(5):
        for p in groups:
            (p * p).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        found.append([group["lr"] for group in optimizer.param_groups])
    return found


# The rates of OneCycleLR are of one number for all groups.
@pytest.mark.parametrize(
    ("name", "several"),
    [(name, several) for name in SCHEDULERS for several in (False, name != "OneCycleLR")],
)
def test_a_scheduler(name: str, several: bool) -> None:
    theirs = [torch.ones(3, requires_grad=True) for _ in range(2)]
    ours = [meta.model.parameter(meta.ones(3)) for _ in range(2)]

    def groups(arrays: list[Any]) -> Any:
        return [{"params": arrays[:1], "lr": 0.4}, {"params": arrays[1:]}] if several else arrays

    expected = rates(torch.optim.SGD(groups(theirs), lr=0.1), SCHEDULERS[name], theirs)
    optimizer = meta.optim.SGD(groups(ours), lr=0.1)
    found = rates(optimizer, SCHEDULERS[name], ours)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().torch(), b.detach())
    assert isinstance(pickle.loads(pickle.dumps(optimizer)), meta.optim.SGD)
    assert copy.deepcopy(optimizer).lr.item() == optimizer.lr.item()


def test_a_plateau() -> None:
    optimizer = meta.optim.Adam([meta.model.parameter(meta.ones(3))], lr=0.1)
    scheduler: Any = schedulers.ReduceLROnPlateau(optimizer, patience=0)
    scheduler.step(1.0)
    scheduler.step(2.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_what_is_written() -> None:
    a, b = (meta.model.parameter(meta.ones(3)) for _ in range(2))
    optimizer = meta.optim.AdamW([{"params": [a]}, {"params": [b], "lr": 0.2}], lr=0.1)
    first, second = optimizer.param_groups
    assert first["params"][0] is a and first["betas"] == (0.9, 0.999) and "lr" in first
    first["lr"] = 0.01
    assert optimizer.lr.item() == pytest.approx(0.01)
    assert second["lr"] == pytest.approx(0.02)
    with pytest.raises(ArgumentError, match="keep their ratio"):
        second["lr"] = 0.5
    with pytest.raises(ArgumentError, match="not 'weight_decay'"):
        first["weight_decay"] = 0.5
    with pytest.raises(UnknownName, match="when the optimizer is made"):
        optimizer.add_param_group({"params": [a]})
    with pytest.raises(UnknownName, match="no hooks"):
        optimizer.register_step_post_hook(print)
