"""What a module keeps: buffers that it writes to, modes, gradients that do not flow."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend import from_torch
from meta.frontend.aten import AtenError


class Counting(nn.Module):
    """Counts its calls, and keeps a mean of what it has seen that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.seen.clone()
        self.calls += 1
        self.seen.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return x * self.scale + before


def close(found: Any, wanted: torch.Tensor, bound: float = 1e-5) -> None:
    torch.testing.assert_close(found.torch(), wanted.detach(), rtol=bound, atol=bound)


@pytest.mark.parametrize("compiled", [False, True])
def test_buffers_are_updated(compiled: bool) -> None:
    module = Counting()
    model, inputs = from_torch(copy.deepcopy(module), (torch.zeros(2, 3),)), torch.randn(3, 2, 3)
    run = meta.vm.compile(model, meta.zeros((2, 3))) if compiled else model
    for x in inputs:
        close(run(meta.array(x)), module(x))
    assert model.state()["calls"].item() == 3
    close(model.state()["seen"], module.seen)


def test_gradients_see_buffers_as_they_were() -> None:
    module, x = Counting(), torch.randn(2, 3)
    model = from_torch(copy.deepcopy(module), (x,))
    model(meta.array(x)).backward(meta.ones((2, 3)))
    module(x).backward(torch.ones(2, 3))
    close(dict(model.named_parameters())["scale"].grad, module.scale.grad)


def test_a_state_dict_lacks_what_is_not_saved() -> None:
    module = Counting()
    model = from_torch(module, (torch.zeros(2, 3),))
    module(torch.ones(2, 3))
    model.load_state_dict(module.state_dict())
    assert model.state()["calls"].item() == 1
    assert model.state()["seen"].numpy().tolist() == [0, 0, 0]


def test_a_copy_counts_for_itself() -> None:
    model, x = from_torch(Counting(), (torch.zeros(2, 3),)), meta.ones((2, 3))
    copied = copy.deepcopy(model)
    model(x)
    assert (model.state()["calls"].item(), copied.state()["calls"].item()) == (1, 0)


class Modes(nn.Module):
    """Does something else in train mode, by operators and by Python."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=0.25)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        return y * 2 if self.training else y, self.drop(torch.ones(200))


def test_train_and_eval() -> None:
    module, x = Modes().eval(), torch.randn(5, 3)
    model, own = from_torch(module, (x,)), copy.deepcopy(module)
    for training in (False, True, False):
        model.train(training)
        own.train(training)
        (y, dropped), (wanted, _) = model(meta.array(x)), own(x)
        close(y, wanted)
        assert set(dropped.numpy().tolist()) == ({0.0, 2.0} if training else {1.0})
        assert not module.training
    for name, buffer in own.named_buffers():
        close(model.state()[name], buffer)


def test_each_run_drops_others() -> None:
    model = from_torch(Modes(), (torch.randn(5, 3),)).train()
    x = meta.array(torch.randn(5, 3))
    run = meta.vm.compile(model, x)
    for call in (model, run):
        assert (call(x)[1] != call(x)[1]).any()


def test_a_program_stays_in_its_mode(tmp_path: Any) -> None:
    x = torch.randn(5, 3)
    for training in (False, True):
        program = torch.export.export(Modes().train(training), (x,))
        torch.export.save(program, tmp_path / "program.pt2")
        model = from_torch(tmp_path / "program.pt2")
        assert model.training == training
        model(meta.array(x))
        modes = ("eval", "train")
        what = f"exported in {modes[training]} mode, and differs in {modes[not training]} mode"
        with pytest.raises(AtenError, match=what):
            model.train(not training)(meta.array(x))
    plain = from_torch(torch.export.export(nn.Linear(3, 2), (x,)))
    close(plain.train()(meta.array(x)), plain.eval()(meta.array(x)).torch())


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            u = x * self.a
            with torch.enable_grad():
                v = (u * self.b).sin()
            w = v * self.a
        return (u * self.a).sum() + v.sum() + w.sum() + (x * self.b).detach().sum()


def test_no_gradient_flows_through_what_is_detached() -> None:
    module, x = Detached(), torch.randn(2, 3)
    model = from_torch(module, (x,))
    program = torch.export.export(module, (x,))
    for imported in (model, from_torch(program)):
        y = imported(meta.array(x))
        y.backward()
        module.zero_grad()
        wanted = module(x)
        wanted.backward()
        close(y, wanted)
        for name, parameter in module.named_parameters():
            close(dict(imported.named_parameters())[name].grad, parameter.grad)
    torch.testing.assert_close(program.module()(x), wanted)  # the program is as it was


class Casting(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ x
        return y, z


def test_blocks_of_mixed_precision() -> None:
    x = torch.randn(4, 4)
    for found, wanted in zip(from_torch(Casting(), (x,))(meta.array(x)), Casting()(x), strict=True):
        close(found, wanted, 1e-2)


class Norms(nn.Module):
    """Batch normalisation; what is done with its statistics besides."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.norm, self.last = way, nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.norm.running_mean.clone() if self.way == "before" else 0.0
        x = self.norm(x)
        between = self.norm.running_var.clone() if self.way == "between" else 0.0
        if self.way in ("twice", "between"):
            x = self.norm(x * 2 + 1)
        x = self.last(x + before + between)
        if self.way == "reset":
            self.norm.running_mean.zero_()
        return x + self.last.running_var if self.way == "after" else x


@pytest.mark.parametrize("way", ["once", "twice", "before", "between", "after", "reset"])
def test_running_statistics_are_written_by_the_normalisation(way: str) -> None:
    """Where nobody reads them meanwhile, else at the end."""
    module = Norms(way).train()
    model = from_torch(copy.deepcopy(module), (torch.randn(4, 3),)).train()
    x = torch.randn(4, 3)
    text = str(model.program(meta.array(x)).module)
    for _ in range(2):
        close(model(meta.array(x)), module(x))
    for name, value in module.named_buffers():
        close(model.state()[name], value)
    pairs = [line for line in text.splitlines() if "assign(" in line and "running" in line]
    assert bool(pairs) == (way not in ("once", "twice"))
