"""Groups of parameters, frozen parameters, learning rates, and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import optim
from meta.base.errors import ArgumentError, GradientError
from meta.model import Linear
from meta.optim import (
    SGD,
    Adagrad,
    AdamW,
    RMSprop,
    with_adafactor,
    with_adagrad,
    with_adamw,
    with_lion,
    with_muon,
    with_rmsprop,
    with_sgd,
)
from meta.optim.schedule import cosine
from meta.testing import check
from tests.optim.problem import MODES, ONE, Given, double, gradients, runner, values


@pytest.mark.parametrize("mode", MODES)
def test_groups_by_pattern_are_those_of_torch(mode: str) -> None:
    model = Given()
    params = double(model)
    theirs = torch.optim.AdamW(
        [
            {"params": [params["weight"]]},
            {"params": [params["bias"]], "weight_decay": 0.0},
            {"params": [params["scale"]], "lr": 0.2, "betas": (0.5, 0.9), "maximize": True},
        ],
        lr=0.1,
        weight_decay=0.3,
    )
    groups: list[Any] = [
        {"params": ["b*"], "weight_decay": 0.0},
        {"params": "scale", "lr": 0.2, "betas": (0.5, 0.9), "maximize": True},
    ]
    step = with_adamw(0.1, weight_decay=0.3, groups=groups)(model)
    run = runner(step, mode)
    for i, given in enumerate(gradients(6)):
        factor = 1 / (i + 1)
        step.lr.update(0.1 * factor)
        for group, rate in zip(theirs.param_groups, (0.1, 0.1, 0.2), strict=True):
            group["lr"] = rate * factor
        for x, g in zip(params.values(), given, strict=True):
            x.grad = g.torch().double()
        theirs.step()
        run(*given)
    for n, x in params.items():
        check(getattr(model, n), x, 1e-5, 1e-5)


def test_groups_in_torch_s_form() -> None:
    model = Given()
    params = double(model)
    theirs = torch.optim.SGD(
        [{"params": [params["weight"], params["bias"]]}, {"params": [params["scale"]], "lr": 1.0}],
        lr=0.1,
        momentum=0.5,
    )
    ours = SGD(
        [
            {"params": [model.weight, model.bias]},
            {"params": {"scale": model.scale}, "lr": 1.0},
        ],
        0.1,
        momentum=0.5,
    )
    assert set(ours.velocity) == {"0", "1", "scale"}
    for given in gradients(3):
        for n, g in zip(params, given, strict=True):
            params[n].grad, getattr(model, n).grad = g.torch().double(), g
        theirs.step()
        ours.step()
    for n, x in params.items():
        check(getattr(model, n), x, 1e-5, 1e-6)


def test_groups_of_iterators() -> None:
    model = Linear(2, 2)
    arrays = dict(model.named_parameters())
    group = {"params": filter(lambda a: a.ndim == 1, arrays.values()), "weight_decay": 0.1}
    optimizer = SGD([{"params": iter([arrays["weight"]])}, group], 0.1)
    assert [g["names"] for g in optimizer.groups] == [("0",), ("1",)]
    assert optimizer.groups[1]["weight_decay"] == 0.1
    make = with_sgd(0.1, groups=[{"params": (n for n in ["bias"]), "weight_decay": 0.1}])
    for _ in range(2):
        step = make(Linear(2, 2))
        assert [g["names"] for g in step.optimizer.groups] == [("weight",), ("bias",)]
    with pytest.raises(ArgumentError, match="an iterator gives its arrays once"):
        SGD(iter(()), 0.1)


def test_an_update_by_hand() -> None:
    model = Linear(2, 2)
    weight, before = model.weight, model.weight.numpy()
    model(meta.ones((1, 2))).sum().backward()
    with pytest.raises(GradientError, match=r"with meta\.no_grad\(\)"):
        weight -= 0.5
    with meta.no_grad():
        for p in model.parameters():
            p -= 0.5 * p.grad
        model.bias *= 2.0
    assert model.weight is weight and len(list(model.parameters())) == 2
    check(weight, torch.tensor(before) - 0.5)
    doubled = weight * 2.0  # computed: as any array, bound anew
    kept = doubled
    doubled += 1.0
    assert kept is not doubled and doubled.requires_grad


def test_parameters_with_and_without_names() -> None:
    model = Linear(2, 2)
    pairs = list(model.named_parameters())
    by_pattern = SGD(pairs, 0.1, groups=[{"params": "bias", "weight_decay": 0.1}])
    assert [g["names"] for g in by_pattern.groups] == [("weight",), ("bias",)]
    listed = SGD([{"params": list(pairs)[:1]}, {"params": model.bias, "weight_decay": 0.1}], 0.1)
    assert [g["names"] for g in listed.groups] == [("weight",), ("1",)]
    chosen = SGD(model.parameters(), 0.1, groups=[{"params": list(pairs)[1:], "momentum": 0.5}])
    assert [g["names"] for g in chosen.groups] == [("0",), ("1",)]
    with pytest.raises(ArgumentError, match="named_parameters"):
        SGD(model.parameters(), 0.1, groups=[{"params": "bias", "weight_decay": 0.1}])


@pytest.mark.parametrize("mode", MODES)
def test_frozen_parameters_have_no_state_and_stay(mode: str) -> None:
    model = Given()
    model.bias.requires_grad = False
    before = values(model)
    step = with_adamw(0.1, ema=0.9, accumulate=2)(model)
    run = runner(step, mode)
    for given in gradients(4):
        run(*given)
    assert torch.equal(model.bias.torch(), before["bias"])
    assert not torch.equal(model.weight.torch(), before["weight"])
    assert not [n for n in step.state() if "bias" in n and not n.startswith("model.")]


def test_a_parameter_that_thaws_needs_a_new_step() -> None:
    model = Given()
    model.bias.requires_grad = False
    step = with_sgd(0.1, 0.9)(model)
    model.bias.requires_grad = True
    with pytest.raises(ArgumentError, match=r"'bias' has a gradient, and no state.*|make a new"):
        step(ONE, *next(gradients(1)))


def test_a_learning_rate_changes_without_a_new_program() -> None:
    model = Given()
    step = with_sgd(0.5)(model)
    given = [meta.array(torch.ones(s.shape)) for s in next(gradients(1))]
    executable = meta.vm.compile(step, ONE, *given)
    before = values(model)["bias"]
    executable(ONE, *given)
    step.lr = 0.25
    executable(ONE, *given)
    check(model.bias, before - 0.75, 1e-6, 1e-6)
    optimizer = SGD([model.bias], 1.0)
    optimizer.lr = 0.125
    assert optimizer.lr.item() == 0.125


def test_state_that_an_option_makes_useless_is_not_kept() -> None:
    model = Given()
    groups = [{"params": "bias", "momentum": 0.5}, {"params": "scale", "centered": True}]
    optimizer = RMSprop(dict(model.named_parameters()), groups=groups)
    assert set(optimizer.v) == {"weight", "bias", "scale"}
    assert set(optimizer.velocity) == {"bias"} and set(optimizer.m) == {"scale"}
    params = double(model)
    theirs = torch.optim.RMSprop(
        [
            {"params": [params["weight"]]},
            {"params": [params["bias"]], "momentum": 0.5},
            {"params": [params["scale"]], "centered": True},
        ]
    )
    for given in gradients(3):
        for n, g in zip(params, given, strict=True):
            params[n].grad, getattr(model, n).grad = g.torch().double(), g
        theirs.step()
        optimizer.step()
    for n, x in params.items():
        check(getattr(model, n), x, 1e-5, 1e-5)


def test_a_group_begins_with_its_own_sum() -> None:
    model = Given()
    groups = [{"params": "bias", "initial_accumulator_value": 2.0}]
    optimizer = Adagrad(
        dict(model.named_parameters()), initial_accumulator_value=0.5, groups=groups
    )
    found = {name: v.numpy().max() for name, v in optimizer.v.items()}
    assert found == {"weight": 0.5, "bias": 2.0, "scale": 0.5}


@pytest.mark.parametrize("name", [n for n in dir(optim) if n.startswith("with_")])
def test_every_number_has_a_range(name: str) -> None:
    maker = getattr(optim, name)
    numbers = inspect.signature(maker).parameters
    own = [n for n, p in numbers.items() if p.annotation is float]
    assert {"lr", "weight_decay"} <= set(own)
    for option in own:
        for value in (math.nan, math.inf):
            with pytest.raises(ArgumentError, match=f"{option} is out of range"):
                maker(**{option: value})


def frozen(model: Given) -> Given:
    for array in model.state().values():
        array.requires_grad = False
    return model


def test_an_optimizer_says_what_it_is() -> None:
    model = Given()
    optimizer = SGD(
        dict(model.named_parameters()), 0.1, 0.9, groups=[{"params": "bias", "momentum": 0.0}]
    )
    assert repr(optimizer) == (
        "SGD(lr=0.1, momentum=0.9, weight_decay=0, nesterov=False, maximize=False; "
        "3 parameters in 2 groups)"
    )


def test_an_optimizer_of_arrays_that_moved_does_nothing_silently() -> None:
    model = Given()
    optimizer = SGD(dict(model.named_parameters()), 0.1)
    model.forward.function(model, *next(gradients(1))).backward()
    model.to(dtype="float64")
    assert model.weight.grad.dtype == "float64"
    with pytest.raises(ArgumentError, match=r"no parameter has a gradient[^$]*model.to"):
        optimizer.step()


REFUSED: list[tuple[Any, str]] = [
    (lambda m: with_sgd(-1.0), "lr is out of range"),
    (lambda m: with_sgd(0.1, 1.0), "momentum is out of range"),
    (lambda m: with_sgd(0.1, nesterov=True), "nesterov looks ahead"),
    (lambda m: with_adamw(betas=(0.9, 1.0)), "betas is out of range"),
    (lambda m: with_rmsprop(alpha=1.0), r"alpha is out of range[^$]*in \[0, 1\)"),
    (lambda m: with_rmsprop(eps=math.nan), "eps is out of range"),
    (lambda m: with_adagrad(lr_decay=-0.1), "lr_decay is out of range"),
    (lambda m: with_adagrad(initial_accumulator_value=math.inf), r">= 0 and finite"),
    (lambda m: with_adagrad(learning_rate_decay=0.1), "it is called lr_decay here"),
    (lambda m: with_adafactor(d=0.5), r"d is out of range[^$]*d >= 1"),
    (lambda m: with_adafactor(beta2_decay=-0.8), "beta2_decay is out of range"),
    (lambda m: with_muon(ns_steps=0), "an int from 1 to 99"),
    (lambda m: with_muon(ns_steps=2.5), "an int from 1 to 99"),
    (lambda m: with_muon(momentum=1.0), "momentum is out of range"),
    (lambda m: with_lion(betas=(0.9, -0.1)), "betas is out of range"),
    (lambda m: with_adamw(clip_norm=0.0), "clip_norm is out of range"),
    (lambda m: with_adamw(clip_norm=1.0, clip_value=1.0), "by their norm or by value"),
    (lambda m: with_adamw(accumulate=0), "accumulate counts calls"),
    (lambda m: with_adamw(ema=1.0), "ema is out of range"),
    (lambda m: with_adamw(loss_scale=1024.0), "this is no loss scale"),
    (lambda m: with_adamw(np.float32(1e-3), betas=("0.9", 0.9)), "no pair of numbers"),
    (lambda m: with_adamw(1e-3, 0.9, 0.99), "no pair of numbers"),
    (lambda m: with_adamw(cosine(10)), r"is no number[^$]*optimizer.lr = "),
    (lambda m: with_sgd(0.1, nesterov=1), "nesterov is no bool"),
    (lambda m: AdamW([{"params": m.bias, "learning_rate": 1.0}]), "it is called lr here"),
    (lambda m: AdamW(m.named_parameters(), learning_rate=1.0), "it is called lr here"),
    (lambda m: AdamW(m.named_parameters(), wight_decay=1.0), "did you mean 'weight_decay'"),
    (lambda m: AdamW(m.named_parameters(), amsgrad=True), "leave amsgrad out"),
    (lambda m: with_sgd(0.1, 0.9, dampening=0.5), "leave dampening out"),
    (lambda m: with_adamw(beta1=0.9), r"they are betas=\(0.9, 0.999\) here"),
    (lambda m: with_adamw(1e-3, 0.9, 0.99, 1e-8, 0.1, []), "too many positional arguments"),
    (lambda m: with_adamw(m), r"numbers come first: with_adamw\(1e-3\)\(model\)"),
    (lambda m: AdamW([meta.array(1.0)]), r"nothing to train[^$]*requires_grad = True"),
    (lambda m: with_sgd()(frozen(m)), "nothing to train"),
    (lambda m: AdamW(m.named_parameters()).step(), r"no parameter has a gradient[^$]*backward"),
    (lambda m: SGD(m.named_parameters()).step(clip_norm=1.0, clip_value=1.0), "not both"),
    (lambda m: with_sgd()(m)(1.0, *next(gradients(1))), r"dy does not fit[^$]*meta.array\(1.0\)"),
    (lambda m: with_sgd()(m)(*next(gradients(1))), r"expected: forward\(dy, /, weight:"),
    (lambda m: AdamW(), "missing a required argument: 'params'"),
    (lambda m: AdamW(m), "not a model"),
    (
        lambda m: SGD([{"params": m.named_parameters()}, {"params": Given().named_parameters()}]),
        "are called",
    ),
    (lambda m: AdamW([{"params": m.bias}, {"params": [m.bias]}]), "in two groups"),
    (lambda m: AdamW([torch.ones(2)]), "is no array"),
    (lambda m: with_adamw(clip_norm="1"), "clip_norm is out of range"),
    (lambda m: with_adamw(groups={"params": "bias"})(m), "no group of parameters"),
    (lambda m: with_adamw(groups=[{"params": m}])(m), r"not a model[^$]*head.parameters\(\)"),
    (lambda m: AdamW([{"params": m}]), "not a model"),
    (lambda m: AdamW([{"params": m.bias}, m.scale]), "no group of parameters"),
    (lambda m: AdamW([{"params": m.bias}, {"weight_decay": 0.1}]), "group 1 has no parameters"),
    (lambda m: with_adamw(groups=[{"params": "*.w"}])(m), "group 0 has no parameters"),
    (lambda m: with_adamw(groups=[{"params": "*", "betas": [0.9, 2]}])(m), "betas is out of range"),
    (lambda m: SGD([{"params": m.bias, "lr": 1.0}], 0.0), "above 0"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises((ArgumentError, GradientError), match=message):
        make(Given())


DEFAULTS = {
    "SGD": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "AdamW": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.01,
    },
    "LAMB": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
    },
    "LANS": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
    },
}


DEFAULTS |= {
    "RMSprop": {
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
    },
    "Adagrad": {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    },
    "Lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0},
    "Adafactor": {
        "lr": 1e-2,
        "beta2_decay": 0.8,
        "eps1": 2.0**-23,
        "eps2": 1e-3,
        "d": 1.0,
        "weight_decay": 0.0,
    },
    "Muon": {
        "lr": 1e-3,
        "weight_decay": 0.1,
        "momentum": 0.95,
        "nesterov": True,
        "eps": 1e-7,
        "ns_steps": 5,
        "match_rms_adamw": False,
        "orthogonal": True,
        "betas": (0.9, 0.95),
    },
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_signatures_state_the_defaults(name: str) -> None:
    """Those of torch (SGD's learning rate is our own) and of the papers; `help` shows them."""
    maker = getattr(optim, f"with_{name.lower()}")
    for shown in (inspect.signature(getattr(optim, name)), inspect.signature(maker)):
        found = {n: p.default for n, p in shown.parameters.items()}
        assert {n: found[n] for n in DEFAULTS[name]} == DEFAULTS[name]
        assert found["maximize"] is False and found["groups"] == ()
    assert found["clip_norm"] is found["ema"] is None
    assert name in maker.__doc__ and maker.__name__ == f"with_{name.lower()}"
