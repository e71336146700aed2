"""Callbacks: code of one's own that a run calls; `EarlyStop` is one. Add one here if others would
want it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from meta.base.errors import ArgumentError

if TYPE_CHECKING:
    from meta.train.run import Run


class Callback:
    """What a run calls, in the order of ``fit(callbacks=)``; each method does nothing unless it is
    overridden.

    What a method raises ends the run. A callback that remembers things returns them from `state`,
    so that a resumed run is the same run.
    """

    def on_begin(self, run: Run) -> None:
        """Called before the first step, and before the next one of a run that is resumed."""

    def on_step(self, run: Run) -> None:
        """Called after every step, before its loss is known: reading ``run.last_loss`` waits for
        the device.
        """

    def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Called with what an evaluation found, by name; "loss" is one."""

    def on_epoch(self, run: Run) -> None:
        """Called at the end of an epoch, behind its evaluation."""

    def on_end(self, run: Run) -> None:
        """Called when the run has ended by itself."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint is to keep: plain values, arrays, and containers of them."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""


class EarlyStop(Callback):
    """Ends a run when a metric of the evaluation has not become better for a while.

    Parameters
    ----------
    patience: how many evaluations may pass without an improvement.
    metric: its name. larger: whether larger is better. least: what an improvement must exceed.
    """

    def __init__(
        self, patience: int, metric: str = "loss", *, larger: bool = False, least: float = 0.0
    ) -> None:
        if not isinstance(patience, int) or patience < 1 or not least >= 0:
            raise ArgumentError(
                "EarlyStop's parameters are out of range",
                expected="patience >= 1, least >= 0",
                found=f"patience={patience}, least={least}",
            )
        self.patience, self.metric, self.larger, self.least = patience, metric, larger, least
        self.best, self.waited = -math.inf if larger else math.inf, 0

    def on_begin(self, run: Run) -> None:
        """End a run that had been ended before."""
        self._check(run)

    def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare with the best so far."""
        if self.metric not in metrics:
            raise ArgumentError(
                "EarlyStop watches a metric that the evaluation has not",
                expected=" or ".join(metrics),
                found=self.metric,
            )
        value = metrics[self.metric]
        gain = value - self.best if self.larger else self.best - value
        if gain > self.least:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        self._check(run)

    def _check(self, run: Run) -> None:
        if self.waited >= self.patience:
            run.stop(f"{self.metric} has not become better in {self.patience} evaluations")

    def state(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        self.best, self.waited = state["best"], state["waited"]
