"""`Meter`: losses and speed of a run, read from the device now and then.

Reading a loss waits for the device. A step is launched while those before it are still computed, so
losses are kept where they are, and read together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from meta.runtime.ndarray import ndarray

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
