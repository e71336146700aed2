"""What a training step does around the update: clipping, loss scales, accumulation, averages, and
going on from its state.
"""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import meta
from meta import op
from meta.base.errors import ArgumentError, NonFiniteError
from meta.model.state import masters_of
from meta.optim import AdamW, DynamicLossScale, StaticLossScale, with_adamw, with_lamb, with_sgd
from meta.testing import check
from tests.optim.problem import MODES, ONE, SHAPES, Given, double, gradients, runner, values


class Partly(Given):
    """A loss that some parameters have no part in."""

    @meta.model.trace
    def forward(self, weight: Any, bias: Any, scale: Any) -> Any:
        """Return the loss."""
        return op.sum(self.weight * weight)


MAKERS = [getattr(meta.optim, name) for name in dir(meta.optim) if name.startswith("with_")]


@pytest.mark.heavy
@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 0.5}, {"accumulate": 2}, {"ema": 0.5}], ids=str
)
def test_what_the_loss_does_not_depend_on_stays(maker: Any, options: Any, mode: str) -> None:
    """Weight decay included, as in an eager loop, where it has no gradient."""
    model = Partly()
    before = values(model)
    run = runner(maker(1e-2, **options)(model), mode)
    for given in gradients(4):
        run(*given)
    after = values(model)
    assert not torch.equal(after["weight"], before["weight"])
    assert torch.equal(after["bias"], before["bias"])
    assert torch.equal(after["scale"], before["scale"])


def test_value_and_grad_has_every_parameter() -> None:
    model = Partly()
    given = next(gradients(1))
    for run in (
        meta.model.value_and_grad(model),
        meta.vm.compile(meta.model.value_and_grad(model), ONE, *given),
    ):
        _, found = run(ONE, *given)
        assert {n: g.shape for n, g in found.items()} == SHAPES
        assert torch.equal(found["weight"].torch(), given[0].torch())
        assert not found["bias"].torch().any() and not found["scale"].torch().any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"clip_norm": 0.7}, {"clip_norm": 50.0}, {"clip_value": 0.3}])
def test_clipping_is_torch_s(options: dict[str, float], mode: str) -> None:
    model = Given()
    params = double(model)
    theirs = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
    run = runner(with_sgd(0.1, 0.9, **options)(model), mode)
    for given in gradients(5):
        for x, g in zip(params.values(), given, strict=True):
            x.grad = g.torch().double()
        if "clip_norm" in options:
            torch.nn.utils.clip_grad_norm_(params.values(), options["clip_norm"])
        else:
            torch.nn.utils.clip_grad_value_(params.values(), options["clip_value"])
        theirs.step()
        run(*given)
    for n, x in params.items():
        check(getattr(model, n), x, 1e-5, 1e-6)


@pytest.mark.parametrize("options", [{"clip_norm": 0.7}, {"clip_value": 0.3}])
def test_an_eager_step_clips_as_a_traced_one(options: dict[str, float]) -> None:
    traced, eager = Given(), Given()
    step, optimizer = with_adamw(0.1, **options)(traced), AdamW(eager.named_parameters(), 0.1)
    for given in gradients(3):
        step(ONE, *given)
        optimizer.zero_grad()
        eager.forward.function(eager, *given).backward()
        optimizer.step(**options)
    for n, x in values(traced).items():
        check(getattr(eager, n), x, 1e-6, 1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_by_name(mode: str) -> None:
    one, other = Given(), Given()
    steps = with_sgd(0.1)(one), with_sgd(0.1)(other)
    weight, bias, scale = next(gradients(1))
    run = (
        meta.vm.compile(steps[1], ONE, weight, scale=scale, bias=bias) if mode == "vm" else steps[1]
    )
    steps[0](ONE, weight, bias, scale)
    run(ONE, weight, bias=bias, scale=scale)
    for n, x in values(one).items():
        check(getattr(other, n), x, 1e-6, 1e-7)


def overflow(given: list[meta.ndarray], value: float) -> list[meta.ndarray]:
    """Return gradients of which one element is not finite."""
    bad = given[0].torch().clone()
    bad[1, 2] = value
    return [meta.array(bad), *given[1:]]


@pytest.mark.parametrize("mode", MODES)
def test_a_dynamic_scale_follows_torch_s_schedule(mode: str) -> None:
    numbers = {"init": 64.0, "growth_interval": 3}
    theirs = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    parameter = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    model = Given()
    step = with_adamw(0.1, loss_scale=DynamicLossScale(**numbers), clip_norm=5.0)(model)
    run = runner(step, mode)
    bad = {2: math.inf, 3: math.nan, 9: -math.inf}
    for i, given in enumerate(gradients(14)):
        theirs.scale(parameter * 1.0).backward()
        parameter.grad.mul_(bad.get(i, 1.0))
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        before, count = values(model), step.optimizer.step_count.item()
        run(*(overflow(given, bad[i]) if i in bad else given))
        assert step.loss_scale.scale.item() == theirs.get_scale()
        assert (i in bad) == all(torch.equal(values(model)[n], x) for n, x in before.items())
        assert step.optimizer.step_count.item() == count + (i not in bad)
    assert all(bool(torch.isfinite(a.torch()).all()) for a in step.state().values())


@pytest.mark.parametrize("maker", [with_sgd, with_adamw, with_lamb])
def test_a_scale_does_not_change_the_update(maker: Any) -> None:
    plain, scaled = Given(), Given()
    steps = maker(0.1)(plain), maker(0.1, loss_scale=StaticLossScale(1024.0))(scaled)
    for given in gradients(4):
        for step in steps:
            step(ONE, *given)
    for n, x in values(plain).items():
        check(getattr(scaled, n), x, 1e-6, 1e-7)


def test_a_scale_saves_gradients_that_half_precision_loses() -> None:
    """The gradient of a half precision intermediate is below what float16 can hold."""

    class Small(meta.Model):
        def build(self) -> None:
            self.weight = meta.array([1.0, 2.0])
            self.weight.requires_grad = True

        @meta.model.trace
        def forward(self) -> Any:
            half = op.astype(self.weight, "float16") * 1e-4
            return op.astype(op.sum(half), "float32") * 1e-4

    steps = [with_sgd(1e4, **o)(Small()) for o in ({}, {"loss_scale": StaticLossScale(2.0**16)})]
    for step in steps:
        step(ONE)
    lost, kept = (step.model.weight for step in steps)
    assert lost.numpy().tolist() == [1.0, 2.0]
    check(kept, torch.tensor([1.0, 2.0]) - 1e-4, 1e-6, 1e-6)


def test_a_loss_that_is_never_finite_raises() -> None:
    step = with_sgd(0.1, loss_scale=DynamicLossScale(max_bad_steps=5))(Given())
    given = overflow(next(gradients(1)), math.nan)
    for _ in range(4):
        step(ONE, *given)
        step.loss_scale.check()
    step(ONE, *given)
    with pytest.raises(NonFiniteError, match="not finite in 5 steps in a row"):
        step.loss_scale.check()
    assert step.loss_scale.scale.item() == 2.0**11


def test_the_scale_has_a_least_value_and_its_own_limits() -> None:
    step = with_sgd(0.1, loss_scale=DynamicLossScale(4.0, min_scale=1.0))(Given())
    for _ in range(5):
        step(ONE, *overflow(next(gradients(1)), math.inf))
    assert step.loss_scale.scale.item() == 1.0
    for numbers in ({"init": 0.0}, {"backoff_factor": 1.0}, {"min_scale": 1e9}):
        with pytest.raises(ArgumentError, match="out of range"):
            DynamicLossScale(**numbers)


def test_a_scale_does_not_fit_into_a_half_precision_result() -> None:
    class Half(meta.Model):
        def build(self) -> None:
            self.weight = meta.array([1.0])
            self.weight.requires_grad = True

        @meta.model.trace
        def forward(self) -> Any:
            return op.astype(op.sum(self.weight), "float16")

    step = with_sgd(0.1, loss_scale=StaticLossScale(8.0))(Half())
    with pytest.raises(ArgumentError, match="does not fit into the float16"):
        step(meta.array(1.0, "float16"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_accumulated_gradients_are_a_larger_batch_s(mode: str, dtype: str) -> None:
    options = {"clip_norm": 1.0, "loss_scale": StaticLossScale(8.0)}
    whole, parts = Given(dtype), Given(dtype)
    larger = with_adamw(0.1, **options)(whole)
    step = with_adamw(0.1, accumulate=4, ema=0.5, **options)(parts)
    run = runner(step, mode, dtype)
    for seed in range(3):
        some = list(gradients(4, dtype, seed))
        mean = [
            meta.array(torch.stack([g.torch().float() for g in each]).mean(0))
            for each in zip(*some, strict=True)
        ]
        before = values(parts)
        for i, given in enumerate(some):
            run(*given)
            same = all(torch.equal(values(parts)[n], x) for n, x in before.items())
            assert same == (i < 3)
        if dtype == "float32":
            larger(ONE, *mean)
            for n, x in values(whole).items():
                check(getattr(parts, n), x, 1e-5, 1e-6)
    assert step.optimizer.step_count.item() == 3 == step.average.count.item()
    assert {a.dtype for a in step.accumulation.gradient.values()} == {"float32"}


@pytest.mark.parametrize("mode", MODES)
def test_the_average_is_torch_s(mode: str) -> None:
    model = Given()
    step = with_sgd(0.1, ema=0.9)(model)
    run = runner(step, mode)
    module = torch.nn.ParameterList(double(model).values())
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for given in gradients(6):
        run(*given)
        with torch.no_grad():
            for own, x in zip(module, values(model).values(), strict=True):
                own.copy_(x)
        averaged.update_parameters(module)
    for own, x in zip(step.average.parameter.values(), averaged.module, strict=True):
        check(own, x, 1e-5, 1e-6)
    model.load_state_dict(step.average.parameter, strict=False)
    assert torch.equal(model.weight.torch(), step.average.parameter["weight"].torch())


def test_the_average_takes_the_place_of_the_parameters_for_a_block() -> None:
    model = Given("float16")
    step = with_sgd(0.1, ema=0.9)(model)
    for given in gradients(3, "float16"):
        step(ONE, *given)
    before = values(model)
    with pytest.raises(KeyError), step.averaged():
        for n, x in step.average.parameter.items():
            assert torch.equal(values(model)[n], x.torch().half())
        raise KeyError
    assert all(torch.equal(values(model)[n], x) for n, x in before.items())
    with (
        pytest.raises(ArgumentError, match=r"keeps no average[^$]*ema="),
        with_sgd()(model).averaged(),
    ):
        pass


@pytest.mark.parametrize("mode", MODES)
def test_a_step_goes_on_from_its_state_bit_for_bit(mode: str) -> None:
    def make() -> Any:
        return with_adamw(
            0.1,
            loss_scale=DynamicLossScale(growth_interval=2),
            accumulate=2,
            ema=0.9,
            clip_norm=1.0,
        )(Given("float16"))

    one = make()
    run = runner(one, mode, "float16")
    steps = list(gradients(10, "float16"))
    for given in steps[:5]:
        run(*given)
    one.lr.update(0.03)
    kept = {n: meta.array(a) for n, a in one.state().items()}
    other = make()
    other.load_state_dict(kept)
    again = runner(other, mode, "float16")
    for given in steps[5:]:
        run(*given)
        again(*given)
    found = other.state()
    assert all(torch.equal(a.torch(), found[n].torch()) for n, a in one.state().items())
    for name in ("lr", "optimizer.step_count", "optimizer.m.weight", "model.weight"):
        assert name in kept
    for name in ("optimizer.master.bias", "loss_scale.scale", "loss_scale.good_steps"):
        assert name in kept
    for name in ("accumulation.count", "accumulation.gradient.bias", "average.parameter.bias"):
        assert name in kept


def load_by_name(model: Given, step: Any, state: dict[str, Any], folder: Any) -> None:
    model.load_state_dict(state)


def load_a_part(model: Given, step: Any, state: dict[str, Any], folder: Any) -> None:
    step.load_state_dict({f"model.{n}": x for n, x in state.items()}, strict=False)


def load_a_file(model: Given, step: Any, state: dict[str, Any], folder: Any) -> None:
    saved = Given()
    saved.load_state_dict(state)
    meta.model.save_weights(saved, folder / "weights.safetensors")
    meta.model.load_weights(model, folder / "weights.safetensors")


def update(model: Given, step: Any, state: dict[str, Any], folder: Any) -> None:
    for n, x in state.items():
        getattr(model, n).update(x)


@pytest.mark.parametrize("load", [load_by_name, load_a_part, load_a_file, update])
def test_masters_follow_weights_that_are_loaded(load: Any, tmp_path: Any) -> None:
    model = Given("float16")
    step = with_sgd(0.1)(model)
    assert not step.optimizer.velocity  # without momentum there is none
    loaded = {n: torch.full(s, 1 + 2**-12) for n, s in SHAPES.items()}
    load(model, step, loaded, tmp_path)
    step(ONE, *(meta.zeros(s, "float16") for s in SHAPES.values()))
    for n, x in loaded.items():
        assert torch.equal(values(model)[n], x.half())
        kept = x.half().float() if load is update else x  # what is loaded is not rounded
        assert torch.equal(step.optimizer.master[n].torch(), kept)


def test_masters_that_are_loaded_themselves_stay() -> None:
    model = Given("float16")
    step = with_adamw(0.1)(model)
    for given in gradients(2, "float16"):
        step(ONE, *given)
    kept = {n: meta.array(a) for n, a in step.state().items()}
    for order in (kept, dict(reversed(kept.items()))):
        other = with_adamw(0.1)(Given("float16"))
        other.load_state_dict(order)
        for n, x in step.optimizer.master.items():
            assert torch.equal(other.optimizer.master[n].torch(), x.torch())


def test_a_copy_of_a_step_has_masters_of_its_own() -> None:
    step = with_sgd(0.1)(Given("float16"))
    other = copy.deepcopy(step)
    other.model.load_state_dict({"scale": 7.0}, strict=False)
    assert other.optimizer.master["scale"].item() == 7
    assert step.optimizer.master["scale"].item() != 7


def test_masters_follow_after_a_step_has_moved() -> None:
    model = Given("float16")
    step = with_sgd(0.1)(model)
    step.to(dtype="float64")  # as another device, in place of which there may be none
    model.load_state_dict({"scale": 7.0}, strict=False)
    assert step.optimizer.master["scale"].dtype == "float64"
    assert step.optimizer.master["scale"].item() == model.scale.item() == 7


def test_masters_of_what_is_gone_are_gone() -> None:
    model = Given("float16")
    held = masters_of(model.bias)
    assert held == []
    step = with_sgd(0.1)(model)
    assert masters_of(model.bias)[0] is step.optimizer.master["bias"]
    del step
    gc.collect()
    assert masters_of(model.bias) == []
