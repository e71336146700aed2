"""What a program of `training_step` was made of is looked at in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.testing import assert_close

from meta.base.errors import ArgumentError
from meta.interop.torch import training_step
from tests.interop.torch.test_training_step import (
    assert_same,
    both,
    loss,
    matrices,
    rows,
    step_of_torch,
)


class Scaled(nn.Module):
    """A layer whose scores are scaled by a number, and by buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.scale = nn.Linear(12, 5), nn.BatchNorm1d(5), 1.0
        self.scales = {"default": 1.0}
        self.register_buffer("kept", torch.ones(5))
        self.register_buffer("unsaved", torch.ones(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale * self.scales["default"]
        return self.norm(self.layer(x)) * scale * self.kept * self.unsaved


def swap(optimizer: optim.Optimizer) -> None:
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "a number": lambda m, _: setattr(m, "scale", 2.0),
    "one of several": lambda m, _: m.scales.update(default=2.0),
    "a number of PyTorch's": lambda m, _: setattr(m.norm, "momentum", 0.5),
    "a buffer, in place": lambda m, _: m.kept.fill_(2.0),
    "a constant, in place": lambda m, _: m.unsaved.fill_(2.0),
    "a buffer": lambda m, _: setattr(m, "kept", torch.full((5,), 2.0)),
    "a layer": lambda m, _: setattr(m, "norm", nn.BatchNorm1d(5, affine=False)),
    "a hook": lambda m, _: m.layer.register_forward_hook(lambda m, x, y: 2 * y),
    "groups": lambda _, o: swap(o),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_is_in_the_next_step(name: str) -> None:
    def grouped(parameters: Any) -> optim.Optimizer:
        weight, bias, *_ = parameters
        groups = [{"params": [weight]}, {"params": [bias], "lr": 0.3}]
        return optim.SGD(groups, 0.1, 0.9)

    ours, theirs = both(grouped, Scaled)
    step = training_step(*ours, loss)
    for i in range(4):
        if i == 2:
            CHANGES[name](*ours), CHANGES[name](*theirs)
        expected = step_of_torch(*theirs, [rows(seed=i)])
        assert_close(step(*rows(seed=i)), expected, rtol=1e-4, atol=1e-5)
    assert_same(ours, theirs)
    assert len(step.executables) == 1


REFUSED: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "gradient": (lambda m, _: m[0].weight.register_hook(lambda g: 2 * g), "no program calls"),
    "update": (lambda _, o: o.register_step_post_hook(lambda *_: None), "no program calls"),
    "second step": (lambda m, o: training_step(m, o, loss), "another training step was made"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_program_does_is_refused(name: str) -> None:
    model = matrices()
    optimizer = optim.SGD(model.parameters(), 0.1)
    step = training_step(model, optimizer, loss)
    step(*rows())
    change, message = REFUSED[name]
    other = change(model, optimizer)
    with pytest.raises(ArgumentError, match=message):
        step(*rows())
    del other


def test_modules_that_exchange_gradients_or_count_are_refused() -> None:
    model = nn.DataParallel(matrices())
    with pytest.raises(ArgumentError, match="DataParallel exchanges gradients itself"):
        training_step(model, optim.SGD(model.parameters()), loss)
    model = matrices()
    model[1].calls = 0
    model[1].forward = lambda x: x * counted(model[1])
    with pytest.raises(ArgumentError, match="reads its attribute 'calls' and writes"):
        training_step(model, optim.SGD(model.parameters()), loss)(*rows())


def counted(module: Any) -> int:
    module.calls += 1
    return module.calls  # type: ignore[no-any-return]
