"""Steps that are composed of operators have what the others have: loss scales, clipping, groups,
and half precision with and without masters.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import meta
from meta import optim
from meta.optim import StaticLossScale, with_adafactor, with_muon
from meta.testing import check
from tests.optim.problem import MODES, ONE, SHAPES, Given, double, gradients, runner, values

MAKERS = pytest.mark.parametrize("maker", [with_adafactor, with_muon], ids=lambda m: m.__name__)


def state(step: Any) -> dict[str, torch.Tensor]:
    """Return copies of all that the optimizer and the model keep."""
    return {n: a.torch().clone() for n, a in step.state().items() if "loss_scale" not in n}


@pytest.mark.heavy
@MAKERS
@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_gradient_that_is_not_finite_changes_nothing(maker: Any, mode: str, dtype: str) -> None:
    step = maker(0.1, loss_scale=StaticLossScale(8.0))(Given(dtype))
    run = runner(step, mode, dtype)
    good, bad, last = gradients(3, dtype)
    run(*good)
    before = state(step)
    bad[0] = bad[0] * math.inf
    run(*bad)
    assert all(torch.equal(x, before[n]) for n, x in state(step).items())
    run(*last)
    assert not torch.equal(state(step)["model.weight"], before["model.weight"])


@MAKERS
@pytest.mark.parametrize("mode", MODES)
def test_scaled_and_accumulated_gradients_are_those_of_a_batch(maker: Any, mode: str) -> None:
    whole, parts = Given(), Given()
    plain = maker(0.1)(whole)
    step = maker(0.1, loss_scale=StaticLossScale(16.0), accumulate=2)(parts)
    run = runner(step, mode)
    for seed in range(3):
        a, b = gradients(2, seed=seed)
        run(*a)
        run(*b)
        plain(ONE, *((x + y) * 0.5 for x, y in zip(a, b, strict=True)))
    for n, x in values(whole).items():
        check(getattr(parts, n), x, 1e-4, 1e-5)


@MAKERS
@pytest.mark.parametrize("options", [{"clip_value": 0.3}, {"clip_norm": 0.7}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_clipping(maker: Any, options: dict[str, float], mode: str) -> None:
    clipped, plain = Given(), Given()
    run = runner(maker(0.1, **options)(clipped), mode)
    step = maker(0.1)(plain)
    for given in gradients(3):
        run(*given)
        xs = [torch.nn.Parameter(g.torch().clone()) for g in given]
        for x, g in zip(xs, given, strict=True):
            x.grad = g.torch().clone()
        if "clip_value" in options:
            torch.nn.utils.clip_grad_value_(xs, options["clip_value"])
        else:
            torch.nn.utils.clip_grad_norm_(xs, options["clip_norm"])
        step(ONE, *(meta.array(x.grad) for x in xs))
    for n, x in values(plain).items():
        check(getattr(clipped, n), x, 1e-4, 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_groups_are_those_of_torch(mode: str) -> None:
    model = Given()
    params = double(model)
    theirs = torch.optim.Adafactor(
        [
            {"params": [params["weight"]], "lr": 0.2, "d": 1.5},
            {"params": [params["bias"]], "weight_decay": 0.0},
            {"params": [params["scale"]], "maximize": True, "lr": 0.2},
        ],
        lr=0.1,
        weight_decay=0.3,
        eps=(2.0**-23, 1e-3),
    )
    groups: list[Any] = [
        {"params": "weight", "lr": 0.2, "d": 1.5},
        {"params": "bias", "weight_decay": 0.0},
        {"params": "scale", "maximize": True, "lr": 0.2},
    ]
    step = with_adafactor(0.1, weight_decay=0.3, groups=groups)(model)
    run = runner(step, mode)
    for i, given in enumerate(gradients(4)):
        step.lr.update(0.1 / (i + 1))
        for group, rate in zip(theirs.param_groups, (0.2, 0.1, 0.2), strict=True):
            group["lr"] = rate / (i + 1)
        for x, g in zip(params.values(), given, strict=True):
            x.grad = g.torch().double()
        theirs.step()
        run(*given)
    for n, x in params.items():
        check(getattr(model, n), x, 1e-5, 1e-5)


@MAKERS
def test_half_precision_without_masters(maker: Any) -> None:
    """A step is computed in float32 and rounded once."""
    half, wide = Given("bfloat16"), Given("bfloat16")
    step = maker(0.05, master_weights=False)(half)
    reference = maker(0.05)(wide)
    assert not step.optimizer.master
    (given,) = gradients(1, "bfloat16")
    step(ONE, *given)
    reference(ONE, *given)
    assert all(torch.equal(x, values(wide)[n]) for n, x in values(half).items())


def test_a_float64_model_is_computed_in_float64() -> None:
    model = Given("float64")
    params = double(model)
    theirs = torch.optim.Adafactor(params.values(), lr=0.0625, eps=(2.0**-23, 1e-3))
    ours = optim.Adafactor(model.named_parameters(), 0.0625)
    for given in gradients(3, "float64"):
        for n, g in zip(SHAPES, given, strict=True):
            params[n].grad, getattr(model, n).grad = g.torch().clone(), g
        theirs.step()
        ours.step()
    for n, x in params.items():
        check(getattr(model, n), x, 1e-12, 1e-12)


def test_strict_dtypes_find_no_cast() -> None:
    with meta.strict_dtypes():
        for maker in (with_adafactor, with_muon):
            for dtype in ("float16", "float64"):
                step = maker(0.1, clip_norm=1.0)(Given(dtype))
                step(ONE, *next(gradients(1, dtype)))
