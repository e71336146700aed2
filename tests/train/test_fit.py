"""`fit`: what it computes, when it evaluates and keeps, how a run ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError
from meta.model import Dropout, Linear, Model, Sequential, trace
from meta.optim import DynamicLossScale, with_adamw, with_sgd
from meta.optim.schedule import linear_decay, step_decay
from meta.train import (
    Accuracy,
    Callback,
    Run,
    evaluate,
    read_checkpoint,
)
from tests.train.problem import (
    CLASSES,
    DATA,
    FEATURES,
    SIZE,
    arrays,
    held_out,
    loss,
    network,
    same,
    train,
    weights,
)

PER_EPOCH = 5


def of_torch(rates: list[float], momentum: float) -> tuple[list[float], torch.nn.Module]:
    """Return the losses of a linear model under torch's SGD, one step per rate, and the model."""
    meta.random.seed(0)
    own = Linear(FEATURES, CLASSES)
    model = torch.nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.weight.copy_(own.weight.torch())
        model.bias.copy_(own.bias.torch())
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    data = held_out()
    batches = [b for _ in range(math.ceil(len(rates) / len(data))) for b in data]
    losses = []
    for rate, (x, y) in zip(rates, batches, strict=False):
        sgd.param_groups[0]["lr"] = rate
        sgd.zero_grad()
        value = torch.nn.functional.cross_entropy(model(x.torch()), y.torch())
        value.backward()
        sgd.step()
        losses.append(value.item())
    return losses, model


@pytest.mark.parametrize("executor", ["interpreter", "vm"])
def test_a_run_is_torchs_run(executor: str) -> None:
    schedule = step_decay(4, gamma=0.5)
    losses, expected = of_torch([0.1 * schedule(i) for i in range(12)], 0.9)
    meta.random.seed(0)
    model = Linear(FEATURES, CLASSES)
    record = train(
        model,
        data=held_out(),
        optimizer=with_sgd(0.1, 0.9),
        steps=12,
        schedule=schedule,
        executor=executor,
    )
    assert record.losses == pytest.approx(losses, rel=1e-5)
    np.testing.assert_allclose(model.weight.numpy(), expected.weight.detach(), rtol=1e-4, atol=1e-6)
    assert (record.step, record.epoch, record.stopped) == (12, 2, "12 steps are done")
    assert record.samples == 12 * SIZE and record.steps_per_second > 0
    assert "12 steps, 2 epochs, loss" in str(record)


def test_it_learns() -> None:
    model = network()
    before = evaluate(model, loss, held_out(), executor="interpreter")
    record = train(model, epochs=12, eval_data=held_out(), metrics={"accuracy": Accuracy()}, seed=5)
    assert record.metrics["loss"] < 0.5 * before["loss"]
    assert record.metrics["accuracy"] > 0.8
    assert [e["step"] for e in record.evaluations] == [PER_EPOCH * (i + 1) for i in range(12)]
    shown = record._repr_html_()
    assert str(record) in shown and shown.count("<tr>") == 13
    assert f">{record.metrics['accuracy']:.4g}</td>" in shown


def test_epochs_and_steps_count_the_same() -> None:
    one, other = network(), network()
    train(one, epochs=2, seed=1)
    train(other, steps=2 * PER_EPOCH, seed=1)
    assert same(one, other)


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    runs = [train(steps=4, data=DATA["loader"](), seed=seed).losses for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_interpreter_and_vm_train_alike() -> None:
    one, other = network(), network()
    a = train(one, steps=7, seed=5)
    b = train(other, steps=7, seed=5, executor="vm")
    assert a.losses == pytest.approx(b.losses, rel=1e-5)


@pytest.mark.parametrize(
    ("data", "cut"),
    [*((data, PER_EPOCH + 3) for data in DATA), ("batches", 2), ("loader", PER_EPOCH)],
)
def test_a_resumed_run_is_the_same_run(data: str, cut: int, tmp_path: Path) -> None:
    undisturbed, resumed = network(), network(seed=9)
    options: dict[str, Any] = {
        "optimizer": with_adamw(1e-2, ema=0.9, accumulate=2),
        "schedule": linear_decay(13),
        "eval_data": held_out(),
        "eval_every": 3,
    }
    whole = train(undisturbed, data=DATA[data](), steps=13, seed=1, **options)
    options["checkpoint"] = tmp_path
    first = train(data=DATA[data](), steps=cut, seed=1, **options)
    rest = train(resumed, data=DATA[data](), steps=13, seed=8, **options)
    assert rest.first_step == cut
    assert first.losses + rest.losses == whole.losses
    assert same(undisturbed, resumed)
    one, other = whole.training_step.average, rest.training_step.average
    assert one is not None and other is not None
    assert all(
        np.array_equal(a.numpy(), other.parameter[n].numpy()) for n, a in one.parameter.items()
    )


def test_another_learning_rate_when_a_run_is_resumed(tmp_path: Path) -> None:
    model = network()
    train(model, steps=2, seed=1, checkpoint=tmp_path)
    faster = with_sgd(0.5, 0.9)
    with pytest.warns(UserWarning, match=r"began with 0.1, not with 0.5"):
        record = train(optimizer=faster, steps=3, checkpoint=tmp_path)
    assert record.training_step.lr.item() == pytest.approx(0.1)
    record = train(optimizer=faster, steps=4, checkpoint=tmp_path, schedule=step_decay(100))
    assert record.training_step.lr.item() == 0.5


def test_the_vm_resumes(tmp_path: Path) -> None:
    undisturbed, resumed = network(), network(seed=9)
    train(undisturbed, steps=7, seed=1, executor="vm")
    train(steps=3, seed=1, executor="vm", checkpoint=tmp_path)
    train(resumed, steps=7, seed=1, executor="vm", checkpoint=tmp_path)
    assert same(undisturbed, resumed)


def test_a_run_that_is_done_is_evaluated_and_not_logged_again(tmp_path: Path) -> None:
    options = {"steps": 3, "checkpoint": tmp_path, "eval_data": held_out()}
    first = train(seed=1, log=tmp_path / "log.csv", **options)
    logged = (tmp_path / "log.csv").read_text("utf-8")
    model = network(seed=4)
    record = train(model, log=tmp_path / "log.csv", **options)
    assert record.step == record.first_step == 3 and not record.losses
    assert record.metrics == first.metrics
    assert (tmp_path / "log.csv").read_text("utf-8") == logged
    kept = read_checkpoint(tmp_path / "step-00000003").model
    assert all(np.array_equal(kept[n].numpy(), a) for n, a in weights(model).items())


def test_the_model_of_a_checkpoint_loads_by_name(tmp_path: Path) -> None:
    model, other = network(), network(seed=3)
    record = train(model, epochs=1, checkpoint=tmp_path)
    assert record.checkpoint == tmp_path / "step-00000005"
    meta.model.load_weights(other, record.checkpoint / "model.safetensors")
    assert same(model, other)


def test_when_it_evaluates_and_keeps(tmp_path: Path) -> None:
    kept: list[set[str]] = []

    class Looks(Callback):
        def on_step(self, run: Run) -> None:
            kept.append({p.name for p in tmp_path.glob("step-*")})

    record = train(
        steps=9,
        checkpoint=tmp_path,
        checkpoint_every=2,
        keep=3,
        eval_data=held_out(),
        eval_every=4,
        callbacks=[Looks()],
    )
    names = [f"step-{i:08d}" for i in range(10)]
    assert kept[8] == {names[4], names[6], names[8]}
    assert {p.name for p in tmp_path.glob("step-*")} == {names[6], names[8], names[9]}
    assert [e["step"] for e in record.evaluations] == [4, 8, 9]


def test_evaluation_changes_nothing() -> None:
    class Noisy(Sequential):
        """Draws random numbers in infer mode, too."""

        def build(self, *layers: Any) -> None:
            super().build(Linear(FEATURES, CLASSES), Dropout(0.5))
            self.always = Dropout(0.5)

        @trace
        def forward_infer(self, x: Any) -> Any:
            return op.dropout(self.forward(x), 0.5)

    runs = []
    for options in ({}, {"eval_data": DATA["loader"](), "eval_every": 1}):
        meta.random.seed(0)
        runs.append(train(Noisy(), data=DATA["loader"](), steps=8, seed=2, **options).losses)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("choice", [None, True, False])
def test_the_average_is_evaluated_and_the_parameters_are_trained(
    choice: bool | None, tmp_path: Path
) -> None:
    seen: list[dict[str, np.ndarray[Any, Any]]] = []

    class Looks(Callback):
        def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
            seen.append(weights(run.model))

    optimizer = with_sgd(0.5, 0.9, ema=0.8)
    plain, model, other = network(), network(), network()
    train(plain, optimizer=optimizer, steps=6, seed=1)
    record = train(
        model,
        optimizer=optimizer,
        steps=6,
        seed=1,
        eval_data=held_out(),
        eval_every=3,
        eval_average=choice,
        callbacks=[Looks()],
        log=tmp_path / "log.csv",
        checkpoint=tmp_path,
    )
    assert same(plain, model) and len(seen) == 2
    assert all(np.array_equal(seen[1][n], a) for n, a in weights(model).items())
    of_average = choice is not False
    other.load_state_dict(weights(model))
    if of_average:
        other.load_state_dict(record.training_step.average.parameter, strict=False)
    found = evaluate(other, loss, held_out(), executor="interpreter")
    assert record.metrics == {"step": 6, **found, "average": of_average}
    of_model = evaluate(model, loss, held_out(), executor="interpreter")
    assert (found == of_model) == (not of_average)
    assert f"{found['loss']},{float(of_average)}" in (tmp_path / "log.csv").read_text()
    assert record.checkpoint is not None
    kept = read_checkpoint(record.checkpoint).model
    assert all(np.array_equal(kept[n].numpy(), a) for n, a in weights(model).items())


def test_modes() -> None:
    model = network()
    inner = model.models()[2]
    inner.eval()
    seen: list[tuple[bool, bool]] = []

    class Looks(Callback):
        def on_step(self, run: Run) -> None:
            seen.append((model.training, inner.training))

    train(model, steps=2, eval_data=held_out(), eval_every=1, callbacks=[Looks()])
    assert seen == [(True, False)] * 2 and model.training and not inner.training
    model.eval()
    train(model, steps=1, callbacks=[Looks()])
    assert seen[2] == (True, True) and not model.training


def test_a_loss_with_parameters_of_its_own(tmp_path: Path) -> None:
    class Weighted(Model):
        def build(self) -> None:
            self.temperature = meta.model.parameter(meta.array(1.0))

        @trace
        def forward(self, scores: Any, labels: Any) -> Any:
            return op.cross_entropy(op.multiply(scores, self.temperature), labels)

    one, other = Weighted(), Weighted()
    train(loss=one, steps=3, checkpoint=tmp_path)
    assert one.temperature.item() != 1
    record = train(loss=other, steps=3, checkpoint=tmp_path)
    assert other.temperature.item() == one.temperature.item()
    assert "model.loss.temperature" in record.training_step.state()


@pytest.mark.slow
def test_a_module_of_torch_is_trained_in_place() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 5), torch.nn.Linear(5, CLASSES))
    model = meta.frontend.from_torch(module, (torch.zeros(SIZE, FEATURES),))
    record = train(model, data=held_out(), epochs=6, optimizer=with_sgd(0.1, 0.9))
    assert record.losses[-1] < 0.7 * record.losses[0]
    assert set(model.state()) == set(module.state_dict())


def test_a_frozen_parameter_stays() -> None:
    model = network()
    first = model.state()["0.weight"]
    first.requires_grad = False
    before = first.numpy()
    train(model, steps=3)
    assert np.array_equal(first.numpy(), before)


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_mixed_precision_resumes(amp: str, tmp_path: Path) -> None:
    undisturbed, resumed = network(), network(seed=9)
    optimizer = with_sgd(0.1, 0.9, loss_scale=DynamicLossScale(growth_interval=3))
    whole = train(undisturbed, steps=9, seed=1, amp=amp, optimizer=optimizer)
    options: dict[str, Any] = {"optimizer": optimizer, "amp": amp, "checkpoint": tmp_path}
    first = train(steps=4, seed=1, **options)
    rest = train(resumed, steps=9, **options)
    assert first.losses + rest.losses == whole.losses and same(undisturbed, resumed)
    assert {a.dtype for a in resumed.parameters()} == {"float32"}


def test_mixed_precision() -> None:
    full = train(epochs=2, seed=1, eval_data=held_out())
    half = train(epochs=2, seed=1, eval_data=held_out(), amp="bfloat16")
    assert half.losses == pytest.approx(full.losses, rel=0.1)
    assert half.losses != full.losses


def test_resume_false_does_not_mix_runs(tmp_path: Path) -> None:
    train(steps=1, checkpoint=tmp_path, resume=False)
    with pytest.raises(ArgumentError, match="there are checkpoints already"):
        train(steps=1, checkpoint=tmp_path, resume=False)


def test_many_shapes_are_told() -> None:
    x, y = arrays()
    batches = [(x[:n], y[:n]) for n in range(2, 18)]
    with pytest.warns(UserWarning, match="16 different shapes"):
        train(Linear(FEATURES, CLASSES), data=batches, steps=16, executor="vm")
