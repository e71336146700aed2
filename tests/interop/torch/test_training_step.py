"""`training_step`: modules, optimizers and losses of PyTorch's, beside PyTorch's own steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from meta.base.errors import ArgumentError
from meta.interop.torch import training_step

Make = Callable[[Iterable[Any]], optim.Optimizer]
Batch = tuple[Tensor, ...]
loss = functional.cross_entropy


class Images(nn.Module):
    """A convolution without a bias, batch normalisation, a layer, and one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.head, self.unread = nn.Linear(6, 5), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.norm(self.conv(x))).mean((2, 3)))


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8, bias=False), nn.Tanh(), nn.Linear(8, 5, bias=False))


def images(n: int = 4, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 6, 6, generator=generator), torch.arange(n) % 5


def rows(n: int = 4, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 12, generator=generator), torch.arange(n) % 5


def step_of_torch(
    model: nn.Module,
    optimizer: optim.Optimizer,
    batches: Iterable[Batch],
    clip: Callable[[Iterable[nn.Parameter]], object] = lambda parameters: None,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """Return the mean loss of a step over some batches, as the tutorials of PyTorch write it."""
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    batches = list(batches)
    found = []
    optimizer.zero_grad()
    for x, y in batches:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            found.append(loss(model(x), y))
        scaler.scale(found[-1] / len(batches)).backward()
    scaler.unscale_(optimizer)
    clip(model.parameters())
    scaler.step(optimizer)
    scaler.update()
    return torch.stack(found).mean().detach()


def assert_same(
    ours: tuple[nn.Module, optim.Optimizer], theirs: tuple[nn.Module, optim.Optimizer], **more: Any
) -> None:
    """Compare models and states of optimizers, key by key."""
    bounds = {"rtol": 1e-4, "atol": 1e-5} | more
    assert_close(ours[0].state_dict(), theirs[0].state_dict(), **bounds)
    found, expected = ours[1].state_dict(), theirs[1].state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        own = found["state"][number]
        assert own.keys() == state.keys()
        tensors = {k for k, v in state.items() if v is not None}
        assert {k for k, v in own.items() if v is not None} == tensors
        assert_close({k: own[k] for k in tensors}, {k: state[k] for k in tensors}, **bounds)


def both(make: Make, model: Callable[[], nn.Module] = Images) -> list[Any]:
    """Return two equal models, each with its optimizer."""
    torch.manual_seed(0)
    first = model()
    return [(m, make(m.parameters())) for m in (first, copy.deepcopy(first))]


def in_groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    given = list(parameters)
    return [
        {"params": [p for p in given if p.ndim == 1], "weight_decay": 0.0, "lr": 0.02},
        {"params": [p for p in given if p.ndim != 1]},
    ]


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: optim.Adam(p, 0.01, (0.8, 0.9), 1e-6, 0.1),
    "adam, decoupled": lambda p: optim.Adam(p, 0.01, decoupled_weight_decay=True, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, 0.01),
    "fused": lambda p: optim.AdamW(p, 0.01, fused=True),
    "uphill": lambda p: optim.AdamW(p, 0.01, maximize=True),
    "rmsprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, 0.01, 0.1, initial_accumulator_value=0.1),
    "adafactor": lambda p: optim.Adafactor(p, 0.01),
    "groups": lambda p: optim.AdamW(in_groups(p), 0.01, weight_decay=0.1),
    "groups of sgd": lambda p: optim.SGD(in_groups(p), 0.1, 0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_and_states_are_those_of_torch(name: str) -> None:
    """With a schedule that changes the ratio of groups, and a parameter without a gradient."""
    ours, theirs = both(OPTIMIZERS[name])
    step = training_step(*ours, loss)
    rates = [lambda i: 1 / (1 + i), lambda i: 1 + i]
    schedules = [LambdaLR(o, rates[: len(o.param_groups)]) for _, o in (ours, theirs)]
    where = [t.data_ptr() for t in ours[0].state_dict().values()]
    for i in range(4):
        found = step(*images(seed=i))
        assert found.shape == () and not found.requires_grad
        assert_close(found, step_of_torch(*theirs, [images(seed=i)]), rtol=1e-4, atol=1e-5)
        for schedule in schedules:
            schedule.step()
    assert_same(ours, theirs)
    assert [t.data_ptr() for t in ours[0].state_dict().values()] == where
    assert len(step.executables) == 1
    # PyTorch goes on where the step ended.
    for model, optimizer in (ours, theirs):
        step_of_torch(model, optimizer, [images(seed=9)])
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["momentum", "adamw", "fused"])
def test_channels_last(name: str) -> None:
    """Parameters, their state and inputs are used where they lie."""

    def model() -> nn.Module:
        return Images().to(memory_format=torch.channels_last)

    ours, theirs = both(OPTIMIZERS[name], model)
    step = training_step(*ours, loss)
    for i in range(3):
        x, y = images(seed=i)
        batch = x.to(memory_format=torch.channels_last if i < 2 else torch.contiguous_format), y
        assert_close(step(*batch), step_of_torch(*theirs, [batch]), rtol=1e-4, atol=1e-5)
    assert_same(ours, theirs)
    pairs = zip(ours[1].state.values(), theirs[1].state.values(), strict=True)
    assert all(a[k].stride() == b[k].stride() for a, b in pairs for k in b if b[k] is not None)


def test_muon() -> None:
    """Torch's iteration is in bfloat16, ours in float32: the steps are near."""
    ours, theirs = both(lambda p: optim.Muon(p, 0.02, adjust_lr_fn="match_rms_adamw"), matrices)
    step = training_step(*ours, loss)
    for i in range(3):
        found = step(*rows(seed=i))
        assert_close(found, step_of_torch(*theirs, [rows(seed=i)]), rtol=1e-2, atol=1e-2)
    assert_same(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("name", "model", "batch"),
    [("momentum", Images, images), ("fused", matrices, rows), ("adafactor", matrices, rows)],
)
def test_the_losses_of_200_steps(name: str, model: Any, batch: Callable[..., Batch]) -> None:
    ours, theirs = both(OPTIMIZERS[name], model)
    step = training_step(*ours, loss)
    batches = [batch(8, seed=i % 2) for i in range(200)]
    found = torch.stack([step(*b) for b in batches])
    expected = torch.stack([step_of_torch(*theirs, [b]) for b in batches])
    assert expected[-1] < expected[0] - 0.2
    assert_close(found, expected, rtol=1e-3, atol=1e-4)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "norm": ({"clip_norm": 0.1}, {"clip": lambda p: nn.utils.clip_grad_norm_(p, 0.1)}),
    "value": ({"clip_value": 0.01}, {"clip": lambda p: nn.utils.clip_grad_value_(p, 0.01)}),
    "bfloat16": ({"autocast": torch.bfloat16}, {"autocast": torch.bfloat16}),
}


@pytest.mark.product
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, accumulate: int) -> None:
    own, of_torch = OPTIONS[name]
    # Of a gradient that is noise of half precision, Adam makes a step as large as any.
    ours, theirs = both(OPTIMIZERS["momentum" if "autocast" in own else "adamw"])
    step = training_step(*ours, loss, accumulate=accumulate, **own)
    bounds = {"rtol": 3e-2, "atol": 3e-2} if "autocast" in own else {"rtol": 1e-4, "atol": 1e-5}
    for i in range(2):
        batches = [images(seed=10 * i + j) for j in range(accumulate)]
        found = torch.stack([step(*batch) for batch in batches]).mean()
        assert_close(found, step_of_torch(*theirs, batches, **of_torch), **bounds)
    assert_same(ours, theirs, **bounds)


@pytest.mark.product
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("init", [8.0, 2.0**127])
def test_a_scaler_does_what_it_does(init: float, accumulate: int) -> None:
    """The larger scale makes gradients infinite: steps are left out, and it is halved."""
    ours, theirs = both(lambda p: optim.AdamW(p, 0.01))
    scalers = [torch.amp.GradScaler("cpu", init, growth_interval=2) for _ in range(2)]
    step = training_step(*ours, loss, scaler=scalers[0], accumulate=accumulate)
    for i in range(5):
        batches = [images(seed=10 * i + j) for j in range(accumulate)]
        found = torch.stack([step(*batch) for batch in batches]).mean()
        expected = step_of_torch(*theirs, batches, scaler=scalers[1])
        assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert scalers[0].state_dict() == scalers[1].state_dict()
    assert_same(ours, theirs)


def test_what_is_frozen_and_parts_in_eval_mode() -> None:
    ours, theirs = both(lambda p: optim.AdamW(p, 0.01))
    for model, _ in (ours, theirs):
        model.norm.eval()
        model.conv.weight.requires_grad_(False)
    step = training_step(*ours, loss)
    for i in range(4):
        if i == 2:  # programs for what is as it is now
            for model, optimizer in (ours, theirs):
                model.norm.train()
                optimizer.param_groups[0]["weight_decay"] = 0.3
        assert_close(step(*images(seed=i)), step_of_torch(*theirs, [images(seed=i)]))
    assert_same(ours, theirs)
    ours[0].eval()
    with pytest.raises(ArgumentError, match="eval mode"):
        step(*images())


class Tied(nn.Module):
    """Tokens, whose embedding is the last layer too, behind a block that is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, labels: Tensor | None = None, scale: float = 1.0) -> Any:
        x = self.embedding(ids)
        x = checkpoint(lambda x: torch.tanh(self.inner(x)), x, use_reentrant=False)
        scores = scale * self.head(x)
        if labels is None:
            return scores
        return {"loss": loss(scores.flatten(0, 1), labels.flatten()), "scores": scores}


def test_a_model_that_returns_its_loss_with_ragged_batches() -> None:
    """Tied weights, checkpointing, arguments by name, numbers; each shape has its program."""
    ours, theirs = both(lambda p: optim.AdamW(p, 0.01, weight_decay=0.1), Tied)
    step = training_step(*ours)
    for i, shape in enumerate([(2, 5), (2, 7), (1, 5), (2, 5)]):
        ids = torch.randint(11, shape, generator=torch.Generator().manual_seed(i))
        found = step(ids, labels=ids, scale=0.5)
        theirs[1].zero_grad()
        expected = theirs[0](ids, labels=ids, scale=0.5)["loss"]
        expected.backward()
        theirs[1].step()
        assert_close(found, expected.detach())
    assert len(step.executables) == 3
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", ["adamw", "adagrad"])
def test_states_are_saved_and_loaded_and_averages_follow(name: str) -> None:
    """Adagrad counts from the start on, parameters that nothing reads too."""
    make = OPTIMIZERS[name]
    ours, theirs = both(make)
    step, average = training_step(*ours, loss), AveragedModel(ours[0])
    for i in range(2):
        step(*images(seed=i))
        average.update_parameters(ours[0])
        step_of_torch(*theirs, [images(seed=i)])
    assert int(average.n_averaged) == 2
    # Into the same model: its tensors stay, those of the optimizer are others.
    saved = copy.deepcopy((ours[0].state_dict(), ours[1].state_dict()))
    step(*images(seed=5))
    ours[0].load_state_dict(saved[0])
    ours[1].load_state_dict(saved[1])
    assert_close(step(*images(seed=2)), step_of_torch(*theirs, [images(seed=2)]))
    assert_same(ours, theirs)
    # Into another one.
    fresh = Images()
    optimizer = make(fresh.parameters())
    fresh.load_state_dict(ours[0].state_dict())
    optimizer.load_state_dict(ours[1].state_dict())
    again = training_step(fresh, optimizer, loss)
    assert_close(again(*images(seed=3)), step_of_torch(*theirs, [images(seed=3)]))
    assert_same((fresh, optimizer), theirs)


@pytest.mark.parametrize("name", ["momentum", "adamw", "fused", "adafactor"])
def test_steps_of_torch_in_between_are_counted(name: str) -> None:
    """Also one that is made before the first of ours."""
    ours, theirs = both(OPTIMIZERS[name])
    step = training_step(*ours, loss)
    for i in range(6):
        expected = step_of_torch(*theirs, [images(seed=i)])
        if i in (0, 3):
            step_of_torch(*ours, [images(seed=i)])
        else:
            assert_close(step(*images(seed=i)), expected, rtol=1e-4, atol=1e-5)
    assert_same(ours, theirs)


def test_steps_of_torch_in_between_compile_nothing_anew() -> None:
    ours, theirs = both(OPTIMIZERS["fused"])
    step = training_step(*ours, loss)
    step(*images())
    known = dict(step.executables)
    step_of_torch(*ours, [images(seed=1)])
    step(*images(seed=2))
    assert step.executables == known
    for i in range(3):
        step_of_torch(*theirs, [images(seed=i)])
    assert_same(ours, theirs)


@pytest.mark.product
@pytest.mark.parametrize("name", ["momentum", "adafactor"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_and_losses_of_other_dtypes(dtype: torch.dtype, name: str) -> None:
    """The least second moment of Adafactor is another for each."""
    ours, theirs = both(OPTIMIZERS[name], lambda: matrices().to(dtype))
    step = training_step(*ours, loss)
    bounds = (
        {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float64 else {"rtol": 3e-2, "atol": 1e-2}
    )
    for i in range(3):
        x, y = rows(seed=i)
        found = step(x.to(dtype), y)
        assert found.dtype == dtype
        assert_close(found, step_of_torch(*theirs, [(x.to(dtype), y)]), **bounds)
    assert_same(ours, theirs, **bounds)


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_the_backward_of_an_autograd_function_in_a_loss_is_its_own() -> None:
    model = matrices()
    theirs = copy.deepcopy(model)
    step = training_step(
        model, optim.SGD(model.parameters(), lr=0.1), lambda y, t: loss(Rounded.apply(y), t)
    )
    x, y = rows()
    step(x, y)
    loss(Rounded.apply(theirs(x)), y).backward()
    optim.SGD(theirs.parameters(), lr=0.1).step()
    assert_close(list(model.parameters()), list(theirs.parameters()))
    x = torch.ones(3, requires_grad=True)
    Rounded.apply(x).sum().backward()
    assert_close(x.grad, torch.ones(3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_what_they_compute(reentrant: bool) -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.first(x))
            return self.last(checkpoint(self.inner, x, use_reentrant=reentrant) + x)

    ours, theirs = both(OPTIMIZERS["adamw"], Again)
    step = training_step(*ours, loss)
    for i in range(2):
        assert_close(step(*rows(seed=i)), step_of_torch(*theirs, [rows(seed=i)]))
    assert_same(ours, theirs)


def test_dropout_draws_anew_at_each_step() -> None:
    model = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5), nn.Linear(64, 5))
    step = training_step(model, optim.SGD(model.parameters(), 0.0), loss)
    assert len({float(step(*rows())) for _ in range(4)}) == 4


def test_several_inputs() -> None:
    """A tuple is arguments of the model, a dict those by name."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 5)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a + 2 * b)

    ours, theirs = both(lambda p: optim.SGD(p, 0.1), Sum)
    step = training_step(
        *ours, lambda y, *targets: loss(y, targets[0]) + targets[1] * y.square().mean()
    )
    x, target = rows()
    for inputs in ((x, x.flip(0)), {"b": x.flip(0), "a": x}):
        theirs[1].zero_grad()
        y = theirs[0](x, x.flip(0))
        expected = loss(y, target) + 0.3 * y.square().mean()
        expected.backward()
        theirs[1].step()
        assert_close(step(inputs, target, torch.tensor(0.3)), expected.detach())
    assert_same(ours, theirs)


def test_numbers_have_programs_by_their_type() -> None:
    def scaled(y: Tensor, target: Tensor, doubled: float) -> Tensor:
        return loss(y, target) * (2.0 if doubled is True else doubled)

    model = matrices()
    step = training_step(model, optim.SGD(model.parameters(), 0.0), scaled)
    one, two, same = (float(step(*rows(), value)) for value in (1, True, 1.0))
    assert one == same and two == pytest.approx(2 * one)
    with pytest.raises(ArgumentError, match="the step takes tensors"):
        step(rows()[0].numpy(), rows()[1], 1)
