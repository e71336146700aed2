"""`Record`: what `fit` returns; and `Meter`: losses and speed of a run, read from the device now
and then.

Reading a loss waits for the device. A step is launched while those before it are still computed, so
losses are kept where they are, and read together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from meta.base.html import MAX_ROWS, fragment, table, tag
from meta.optim import TrainingStep
from meta.runtime.ndarray import ndarray
from meta.vm.executable import Executable


@dataclass(slots=True)
class Record:
    """What a run did, from where it began or was resumed.

    Attributes
    ----------
    training_step: model and optimizer as they are now; averages of the parameters, too.
    executables: the compiled steps, one per shape of a batch (profile, memory, explain, kernels).
    first_step: how many steps were done before (by the run that was resumed).
    losses: of the steps since, in order.
    evaluations: what each evaluation found: "step" and the metrics by name, "loss" among them; of
    a run that keeps an average "average": 1.0 if it was evaluated, 0.0 if the parameters were.
    epoch: how many epochs are complete. stopped: why the run ended.
    seconds: the time that the steps took. compile_seconds: and compiling them.
    samples: how many were trained on. checkpoint: the newest one's folder, if there is one.

    >>> x = meta.ones((4, 1))
    >>> data, sgd = meta.train.Batches(x, x, 2), meta.optim.with_sgd()
    >>> record = meta.train.fit(meta.model.Linear(1, 1), meta.mse_loss, data, sgd, epochs=3)
    >>> record.step, record.epoch, len(record.losses), record.samples
    (6, 3, 6, 12)
    """

    training_step: TrainingStep
    executables: list[Executable] = field(default_factory=list)
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    epoch: int = 0
    stopped: str = ""
    seconds: float = 0.0
    compile_seconds: float = 0.0
    samples: int = 0
    checkpoint: Path | None = None

    @property
    def step(self) -> int:
        """How many steps are done in all."""
        return self.first_step + len(self.losses)

    @property
    def metrics(self) -> dict[str, float]:
        """What the last evaluation found."""
        return self.evaluations[-1] if self.evaluations else {}

    @property
    def steps_per_second(self) -> float:
        """The speed of the steps, compiling left out."""
        return len(self.losses) / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """The speed of the samples, compiling left out."""
        return self.samples / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        loss = f"loss {self.losses[-1]:.4g}" if self.losses else "no step"
        found = ", ".join(f"{k} {v:.4g}" for k, v in self.metrics.items() if k != "step")
        return (
            f"{self.step} steps, {self.epoch} epochs, {loss}"
            f"{'; evaluation: ' + found if found else ''}; {self.steps_per_second:.1f} steps/s; "
            f"ended: {self.stopped}"
        )

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for found in self.evaluations for name in found))
        rows = [
            [f"{found[name]:.4g}" if name in found else "" for name in names]
            for found in self.evaluations[-MAX_ROWS:]
        ]
        shown = table(names, rows, numbers=range(len(names)))
        return fragment(tag("div", str(self), class_="title"), shown)


INTERVAL_SECONDS = 0.5
LIMIT = 1000
"""So many losses are kept on the device at most."""


@dataclass(slots=True)
class StepMeasurement:
    """One step: its number (from 1), epoch, loss, learning rate and the time it was launched at."""

    step: int
    epoch: int
    loss: float
    learning_rate: float
    time: float


class Meter:
    """Collects the steps of a run.

    Attributes
    ----------
    seconds: the time that steps took, without compiling, evaluating and writing checkpoints.
    samples: their samples. samples_per_second: of the steps that were read last.
    """

    def __init__(self) -> None:
        self.seconds, self.samples, self.samples_per_second = 0.0, 0, 0.0
        self._waiting: list[tuple[StepMeasurement, ndarray]] = []
        self._new_samples = 0
        self._since = time.perf_counter()

    def add(self, step: int, epoch: int, loss: ndarray, learning_rate: float, samples: int) -> None:
        """Take the loss of a step, which may be still to be computed."""
        measured = StepMeasurement(step, epoch, 0.0, learning_rate, time.time())
        self._waiting.append((measured, loss))
        self._new_samples += samples

    @property
    def due(self) -> bool:
        """Whether it is time to read."""
        return len(self._waiting) >= LIMIT or time.perf_counter() - self._since >= INTERVAL_SECONDS

    def read(self) -> list[StepMeasurement]:
        """Wait for the device and return what was collected since the last time."""
        if not self._waiting:
            return []
        losses = torch.stack([loss.tensor for _, loss in self._waiting]).double().cpu().tolist()
        found = [m for m, _ in self._waiting]
        for measured, loss in zip(found, losses, strict=True):
            measured.loss = loss
        seconds = time.perf_counter() - self._since
        self.samples_per_second = self._new_samples / max(seconds, 1e-9)
        self.seconds += seconds
        self.samples += self._new_samples
        self._waiting, self._new_samples = [], 0
        self.resume()
        return found

    def resume(self) -> None:
        """Start the clock again: what passed since the last reading was no step."""
        self._since = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Do not count seconds that passed since the last reading."""
        self._since += seconds
