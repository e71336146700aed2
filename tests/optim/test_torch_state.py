"""A run begun by torch's optimizer goes on with ours: the same numbers as torch's in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import FormatError

ALGORITHMS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.05, "betas": (0.8, 0.9), "maximize": True}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.5, "centered": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
]


def torch_run(name: str, options: dict[str, Any], steps: int, groups: bool) -> Any:
    """Return parameters and optimizer after some steps; the last parameter is frozen."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (2,), (4,), (2, 2)]
    params = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    for p in params[:3]:
        p.requires_grad = True
    optimizer = getattr(torch.optim, name)(grouped(params, groups), **options)
    for _ in range(steps):
        step(params[:3], optimizer)
    return params, optimizer


def grouped(params: list[Any], groups: bool) -> Any:
    return [{"params": params[:1], "lr": 0.2}, {"params": params[1:]}] if groups else params


def step(params: list[Any], optimizer: Any) -> None:
    optimizer.zero_grad()
    sum((p**3).sum() for p in params).backward()
    optimizer.step()


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize(("name", "options"), ALGORITHMS)
def test_a_run_goes_on(name: str, options: dict[str, Any], groups: bool) -> None:
    theirs, optimizer = torch_run(name, options, 3, groups)
    ours = [meta.model.parameter(meta.array(p.detach())) for p in theirs]
    ours[3].requires_grad = False
    own = getattr(meta.optim, name)(grouped(ours, groups), **{**options, "lr": 0.3})
    if groups:  # of which the ratio of the learning rates is the optimizer's own
        own = getattr(meta.optim, name)(grouped(ours, groups), **options)
    for group in optimizer.param_groups:  # as a schedule does
        group["initial_lr"], group["lr"] = group["lr"], group["lr"] / 2
    own.load_state_dict(optimizer.state_dict())
    assert own.param_groups[0]["initial_lr"] == optimizer.param_groups[0]["initial_lr"]
    for _ in range(3):
        step(theirs[:3], optimizer)
        step(ours[:3], own)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().torch(), b.detach(), rtol=1e-6, atol=1e-6)


REFUSED: list[tuple[str, dict[str, Any], str, dict[str, Any], str]] = [
    ("Adam", {"amsgrad": True}, "Adam", {}, "another amsgrad"),
    ("Adam", {"betas": (0.5, 0.9)}, "Adam", {}, "another betas"),
    ("AdamW", {}, "Adam", {"weight_decay": 0.01}, "another decoupled_weight_decay"),
    ("SGD", {"momentum": 0.9, "dampening": 0.1}, "SGD", {"momentum": 0.9}, "another dampening"),
    ("Adam", {}, "RMSprop", {}, "another lr_decay|there is more|another eps|another alpha"),
    ("Adam", {}, "LAMB", {}, "no counterpart in torch"),
]


@pytest.mark.parametrize(("name", "options", "own", "own_options", "what"), REFUSED)
def test_another_algorithm_is_an_error(
    name: str, options: dict[str, Any], own: str, own_options: dict[str, Any], what: str
) -> None:
    theirs, optimizer = torch_run(name, options, 1, False)
    ours = [meta.model.parameter(meta.array(p.detach())) for p in theirs]
    made = getattr(meta.optim, own)(ours[:3], **own_options)
    before = {n: a.numpy() for n, a in made.state().items()}
    with pytest.raises(FormatError, match=what):
        made.load_state_dict(optimizer.state_dict())
    assert all((a.numpy() == before[n]).all() for n, a in made.state().items())


def test_other_parameters_are_an_error() -> None:
    theirs, optimizer = torch_run("SGD", {"momentum": 0.9}, 1, False)
    made = meta.optim.SGD([meta.model.parameter(meta.ones(3))], momentum=0.9)
    with pytest.raises(FormatError, match="group 0 has other parameters"):
        made.load_state_dict(optimizer.state_dict())
    swapped = [meta.model.parameter(meta.array(p.detach())) for p in reversed(theirs[:3])]
    with pytest.raises(FormatError, match="another shape"):
        meta.optim.SGD(swapped, momentum=0.9).load_state_dict(optimizer.state_dict())


def test_a_parameter_of_fewer_steps_is_an_error() -> None:
    theirs, optimizer = torch_run("Adam", {}, 2, False)
    optimizer.state[theirs[0]]["step"] += 1
    made = meta.optim.Adam([meta.model.parameter(meta.array(p.detach())) for p in theirs[:3]])
    with pytest.raises(FormatError, match="different numbers of steps"):
        made.load_state_dict(optimizer.state_dict())


def test_options_that_change_are_seen_in_the_groups() -> None:
    made = meta.optim.SGD([meta.model.parameter(meta.ones(3))], weight_decay=0.1)
    (group,) = made.param_groups
    assert group["weight_decay"] == 0.1
    made.groups[0]["weight_decay"] = 0.2
    assert group["weight_decay"] == 0.2
