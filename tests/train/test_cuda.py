"""Training on CUDA: the same results, and no step that waits for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import meta
from meta.model import Linear
from meta.optim import DynamicLossScale, with_adamw, with_sgd
from meta.optim.schedule import cosine
from meta.train import Accuracy, Batches, Callback, Run, evaluate, fit
from tests.train.problem import CLASSES, FEATURES, SIZE, arrays, held_out, loss, network

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("executor", ["vm", "interpreter"])
def test_cuda_and_cpu_train_alike(executor: str, tmp_path: Path) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = network()
        record = fit(
            model,
            loss,
            Batches(*arrays(), SIZE, seed=1),
            with_sgd(0.1, 0.9),
            steps=12,
            schedule=cosine(12),
            eval_data=held_out(),
            metrics={"accuracy": Accuracy()},
            checkpoint=tmp_path / device,
            executor=executor,
            device=device,
            seed=1,
        )
        assert {a.device.kind for a in model.state().values()} == {device}
        found.append(record)
    cpu, cuda = found
    assert cuda.losses == pytest.approx(cpu.losses, rel=1e-3)
    assert cuda.metrics["loss"] == pytest.approx(cpu.metrics["loss"], rel=1e-3)


def test_a_run_goes_on_on_another_device(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path, "executor": "interpreter", "seed": 1}
    data = Batches(*arrays(), SIZE, seed=1)
    fit(network(), loss, data, with_adamw(1e-2), steps=4, device="cuda", **options)
    record = fit(network(), loss, data, with_adamw(1e-2), steps=8, device="cpu", **options)
    assert record.first_step == 4


class NoWaiting(Callback):
    """Makes torch raise where the host waits for the device, between two steps of an epoch."""

    def on_step(self, run: Run) -> None:
        if run.step in (6, 9):  # within an epoch: an order is made at its beginning
            torch.cuda.set_sync_debug_mode("error" if run.step == 6 else "default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("kind", ["pinned", "on the device"])
def test_no_step_waits_for_the_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meta.train.record.INTERVAL_SECONDS", 1e9)
    x, y = map(torch.from_numpy, arrays())
    data: Any = DataLoader(TensorDataset(x, y), batch_size=SIZE, pin_memory=True)
    if kind == "on the device":
        data = Batches(x.cuda(), y.cuda(), SIZE, seed=1)
    try:
        fit(
            network(),
            loss,
            data,
            with_adamw(1e-2, clip_norm=1.0, loss_scale=DynamicLossScale()),
            steps=20,
            schedule=cosine(20),
            device="cuda",
            callbacks=[NoWaiting()],
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("amp", ["float16", "bfloat16"])
def test_mixed_precision(amp: str) -> None:
    scale = DynamicLossScale() if amp == "float16" else None
    model = Linear(FEATURES, CLASSES).to(device="cuda")
    before = evaluate(model, loss, held_out())["loss"]
    fit(
        model,
        loss,
        Batches(*arrays(), SIZE, seed=1),
        with_adamw(5e-2, loss_scale=scale),
        epochs=6,
        amp=amp,
    )
    assert evaluate(model, loss, held_out(), amp=amp)["loss"] < before


def test_the_average_is_evaluated() -> None:
    found = []
    for device in ("cpu", "cuda"):
        record = fit(
            network(),
            loss,
            Batches(*arrays(), SIZE, seed=1),
            with_sgd(0.1, 0.9, ema=0.8, maximize=True, clip_norm=0.5),
            steps=12,
            eval_data=held_out(),
            device=device,
            seed=1,
        )
        found.append(record)
        assert record.losses[-1] > 1.5 * record.losses[0]
        assert record.metrics["average"] == 1
    assert found[1].metrics == pytest.approx(found[0].metrics, rel=1e-3)


def test_masters_follow_weights_that_are_loaded() -> None:
    model = Linear(FEATURES, CLASSES).to(device="cuda", dtype="float16")
    step = with_adamw(0.0)(model)
    state = {n: torch.full(a.shape, 1 + 2**-12) for n, a in model.state().items()}
    model.load_state_dict(state)
    x = meta.array(torch.ones(2, FEATURES), "float16", device="cuda")
    step(meta.zeros((2, CLASSES), "float16", device="cuda"), x)
    for n, master in step.optimizer.master.items():
        assert master.device.kind == "cuda" and master.numpy().max() == 1 + 2**-12
        assert model.state()[n].numpy().max() == 1
