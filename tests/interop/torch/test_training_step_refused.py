"""`training_step`: optimizers from elsewhere, and what is refused, before anything is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.testing import assert_close

import meta
from meta.base.errors import ArgumentError, MetaError, RegistrationError
from meta.interop.torch import (
    Algorithm,
    TorchTrainingStep,
    optimizers,
    register_optimizer,
    training_step,
)
from tests.interop.torch.test_training_step import (
    OPTIMIZERS,
    Make,
    assert_same,
    both,
    images,
    loss,
    matrices,
    rows,
    step_of_torch,
)


class Lion(optim.Optimizer):
    """As packages have it."""

    def __init__(self, params: Any, lr: float = 1e-3, cautious: bool = False) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1, "cautious": cautious}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in filter(lambda p: p.grad is not None, group["params"]):
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * (first * mean + (1 - first) * p.grad).sign())
                mean.mul_(second).add_(p.grad, alpha=1 - second)


@pytest.fixture
def lion(monkeypatch: pytest.MonkeyPatch) -> None:
    """State what the class does."""
    monkeypatch.setattr(optimizers, "ALGORITHMS", dict(optimizers.ALGORITHMS))
    algorithm = Algorithm(
        lambda group: meta.optim.Lion,
        lambda group: {"betas": group["betas"], "weight_decay": group["weight_decay"]},
        {"exp_avg": "m"},
        {"cautious": False},
        has_step=False,
    )
    register_optimizer(Lion, algorithm)
    with pytest.raises(RegistrationError, match="Lion has an algorithm already"):
        register_optimizer(Lion, replace(algorithm))


@pytest.mark.usefixtures("lion")
def test_an_optimizer_from_elsewhere() -> None:
    ours, theirs = both(lambda p: Lion(p, 0.01), matrices)
    step = training_step(*ours, loss)
    for i in range(4):
        expected = step_of_torch(*theirs, [rows(seed=i)])
        assert_close(step(*rows(seed=i)), expected, rtol=1e-4, atol=1e-5)
    assert_same(ours, theirs)
    model = matrices()
    with pytest.raises(ArgumentError, match="cautious of parameter group 0 is not supported"):
        training_step(model, Lion(model.parameters(), cautious=True), loss)


@pytest.mark.usefixtures("lion")
@pytest.mark.parametrize("make", [Lion, optim.Adafactor, optim.Muon, optim.AdamW])
def test_a_state_is_loaded_before_the_step(make: Make) -> None:
    """Which adds defaults to an optimizer."""
    ours, theirs = both(make, matrices)
    for model, optimizer in (ours, theirs):
        step_of_torch(model, optimizer, [rows()])
        optimizer.load_state_dict(optimizer.state_dict())
    expected = step_of_torch(*theirs, [rows(seed=1)])
    assert_close(training_step(*ours, loss)(*rows(seed=1)), expected, rtol=1e-4, atol=1e-5)
    assert_same(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("lion")
def test_an_option_of_which_nothing_is_stated_is_refused() -> None:
    optimizers.ALGORITHMS[Lion] = replace(optimizers.ALGORITHMS[Lion], required={})
    model = matrices()
    with pytest.raises(ArgumentError, match="nothing says what its option cautious does"):
        training_step(model, Lion(model.parameters()), loss)


def refused(change: Callable[[nn.Module], dict[str, Any]]) -> TorchTrainingStep:
    model = matrices()
    given = {"optimizer": optim.SGD(model.parameters(), 0.1, 0.9), "loss": loss} | change(model)
    return training_step(model, **given)


REFUSED: dict[str, tuple[Callable[[nn.Module], dict[str, Any]], str]] = {
    "algorithm": (lambda m: {"optimizer": optim.Rprop(m.parameters())}, "no optimizer of ours"),
    "ours": (
        lambda m: {"optimizer": meta.optim.SGD(meta.model.Linear(3, 2).parameters(), lr=0.1)},
        "PyTorch's",
    ),
    "none": (lambda m: {"optimizer": None}, "an optimizer of PyTorch's"),
    "amsgrad": (lambda m: {"optimizer": optim.Adam(m.parameters(), amsgrad=True)}, "amsgrad"),
    "dampening": (lambda m: {"optimizer": optim.SGD(m.parameters(), dampening=0.1)}, "dampening"),
    "others": (lambda m: {"optimizer": optim.SGD(matrices().parameters())}, "model has not"),
    "gaps": (lambda m: of_weight(m, torch.randn(8, 24)[:, ::2]), "gaps in memory"),
    "columns": (lambda m: of_weight(m, torch.randn(12, 8).T, optim.Muon), "rows and columns of"),
    "precision": (lambda m: {"autocast": torch.float64}, "no dtype of mixed precision"),
    "clipping": (lambda m: {"clip_norm": 1.0, "clip_value": 1.0}, "not both"),
    "accumulate": (lambda m: {"accumulate": 0}, "accumulate counts calls"),
}


def of_weight(model: Any, weight: Tensor, make: Any = optim.SGD) -> dict[str, Any]:
    model[0].weight = nn.Parameter(weight)
    return {"optimizer": make(model.parameters())}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_at_once(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        refused(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, t: y, "the loss is no number"),
        (lambda y, t: loss(y, t) if y.sum() > 0 else -loss(y, t), "torch.export refuses"),
        (lambda y, t: torch.linalg.eigvals(y[:4, :4]).abs().sum(), "has no gradient"),
    ],
)
def test_an_error_at_the_first_call_changes_nothing(change: Any, message: str) -> None:
    model = matrices()
    optimizer = optim.AdamW(model.parameters())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(MetaError, match=message):
        training_step(model, optimizer, change)(*rows())
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state


def test_counts_of_steps_that_differ_are_refused() -> None:
    model, optimizer = both(OPTIMIZERS["adamw"], matrices)[0]
    step_of_torch(model, optimizer, [rows()])
    optimizer.state[model[0].weight]["step"] += 1
    with pytest.raises(ArgumentError, match="different numbers of steps"):
        training_step(model, optimizer, loss)


def test_a_parameter_that_starts_later_is_refused() -> None:
    model, optimizer = both(OPTIMIZERS["adamw"])[0]
    model.conv.weight.requires_grad_(False)
    step = training_step(model, optimizer, loss)
    step(*images())
    model.conv.weight.requires_grad_(True)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(ArgumentError, match="weight has made no step yet"):
        step(*images())
    assert_close(model.state_dict(), before[0], rtol=0, atol=0)
    assert optimizer.state_dict()["state"].keys() == before[1]["state"].keys()
    model.conv.weight.requires_grad_(False)
    step(*images())


def test_changes_while_gradients_are_accumulated_are_refused() -> None:
    model, optimizer = both(OPTIMIZERS["sgd"])[0]
    step = training_step(model, optimizer, loss, accumulate=2)
    step(*images())
    for change, back in (
        (model.norm.eval, model.norm.train),
        (
            lambda: setattr(model.norm, "momentum", 0.3),
            lambda: setattr(model.norm, "momentum", 0.1),
        ),
    ):
        change()
        with pytest.raises(ArgumentError, match="while gradients are accumulated"):
            step(*images())
        back()
    step(*images())
