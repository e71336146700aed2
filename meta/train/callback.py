"""Callbacks: code of one's own that a run calls; `EarlyStop` and `ReduceOnPlateau` are some. Add
one here if others would want it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from meta.base.errors import ArgumentError, FormatError
from meta.runtime.ndarray import ndarray

if TYPE_CHECKING:
    from meta.train.run import Run


class Callback:
    """What a run calls, in the order of ``fit(callbacks=)``; each method does nothing unless it is
    overridden.

    What a method raises ends the run. A callback that remembers things returns them from `state`,
    so that a resumed run is the same run.

    >>> class Count(meta.train.Callback):
    ...     steps = 0
    ...     def on_step(self, run):
    ...         self.steps += 1
    >>> count, x = Count(), meta.ones((4, 1))
    >>> data = meta.train.Batches(x, x, 2)
    >>> net, sgd = meta.model.Linear(1, 1), meta.optim.with_sgd()
    >>> record = meta.train.fit(net, meta.mse_loss, data, sgd, epochs=3, callbacks=[count])
    >>> count.steps
    6
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


class MetricMonitor(Callback):
    """Base of callbacks that compare a metric of the evaluations with the best so far.

    Attributes
    ----------
    best: its best value. waited: how many evaluations have passed since without an improvement.
    """

    def __init__(self, patience: int, metric: str, larger: bool, least: float) -> None:
        if not isinstance(patience, int) or patience < 1 or not least >= 0:
            raise ArgumentError(
                f"{type(self).__name__}'s parameters are out of range",
                expected="patience >= 1, least >= 0",
                found=f"patience={patience}, least={least}",
            )
        self.patience, self.metric, self.larger, self.least = patience, metric, larger, least
        self.best, self.waited = -math.inf if larger else math.inf, 0

    def compare(self, metrics: dict[str, float]) -> bool:
        """Compare an evaluation with the best so far; return whether it is better."""
        if self.metric not in metrics:
            raise ArgumentError(
                f"{type(self).__name__} watches a metric that the evaluation has not",
                expected=" or ".join(metrics),
                found=self.metric,
            )
        value = metrics[self.metric]
        gain = value - self.best if self.larger else self.best - value
        if gain > self.least:
            self.best, self.waited = value, 0
            return True
        self.waited += 1
        return False

    def state(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        self.best, self.waited = state["best"], state["waited"]


class EarlyStop(MetricMonitor):
    """Ends a run when a metric of the evaluation has not become better for a while.

    Parameters
    ----------
    patience: how many evaluations may pass without an improvement.
    metric: its name. larger: whether larger is better. least: what an improvement must exceed.
    restore_best: whether the model is, behind the run, as it was at its best evaluation, of which
    the callback keeps a copy.

    >>> x = meta.ones((4, 1))
    >>> data, sgd = meta.train.Batches(x, x, 4), meta.optim.with_sgd(lr=0.0)  # which learns nothing
    >>> stop = meta.train.EarlyStop(patience=2)
    >>> options = {"epochs": 9, "eval_data": data, "callbacks": [stop]}
    >>> record = meta.train.fit(meta.model.Linear(1, 1), meta.mse_loss, data, sgd, **options)
    >>> record.epoch
    3
    """

    def __init__(
        self,
        patience: int,
        metric: str = "loss",
        *,
        larger: bool = False,
        least: float = 0.0,
        restore_best: bool = False,
    ) -> None:
        super().__init__(patience, metric, larger, least)
        self.restore_best = restore_best
        self._best_model: dict[str, ndarray] = {}

    def on_begin(self, run: Run) -> None:
        """End a run that had been ended before."""
        self._check(run)

    def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare with the best so far."""
        if not self.compare(metrics):
            self._check(run)
        elif self.restore_best:
            self._best_model = {n: x.detach().clone() for n, x in run.model.state().items()}

    def on_end(self, run: Run) -> None:
        """Restore the best model, if that is wanted."""
        if self._best_model:
            run.model.load_state_dict(self._best_model)

    def state(self) -> dict[str, Any]:
        """Return the best value, how long ago it was, and the model then."""
        return super().state() | {"model": self._best_model}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        super().load_state(state)
        self._best_model = dict(state.get("model", {}))
        if self.restore_best and not self._best_model and math.isfinite(self.best):
            raise FormatError(
                "this state of EarlyStop has no best model, which is to be restored",
                found="a checkpoint that was written without restore_best",
                hint="EarlyStop(restore_best=False), or a run from the start",
            )

    def _check(self, run: Run) -> None:
        if self.waited >= self.patience:
            run.stop(f"{self.metric} has not become better in {self.patience} evaluations")


class ReduceOnPlateau(MetricMonitor):
    """Multiplies the learning rate by ``factor`` when a metric of the evaluation has not become
    better for a while; as torch.optim.lr_scheduler.ReduceLROnPlateau with ``threshold_mode="abs"``
    and a threshold of ``least``. A run with ``schedule=`` refuses it.

    Parameters
    ----------
    factor: in (0, 1). patience: how many evaluations may pass without an improvement; the next one
    without reduces.
    metric: its name. larger: whether larger is better. least: what an improvement must exceed.
    cooldown: so many evaluations after a reduction do not count. minimum: the learning rate does
    not fall below it.

    >>> x = meta.ones((4, 1))
    >>> data, sgd = meta.train.Batches(x, x, 4), meta.optim.with_adam(lr=1e-12)  # learns nothing
    >>> slower = meta.train.ReduceOnPlateau(factor=0.5, patience=1)
    >>> options = {"epochs": 3, "eval_data": data, "callbacks": [slower]}
    >>> record = meta.train.fit(meta.model.Linear(1, 1), meta.mse_loss, data, sgd, **options)
    >>> record.training_step.lr.item() < 1e-12
    True
    """

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        metric: str = "loss",
        *,
        larger: bool = False,
        least: float = 0.0,
        cooldown: int = 0,
        minimum: float = 0.0,
    ) -> None:
        super().__init__(patience, metric, larger, least)
        if not (0 < factor < 1 and isinstance(cooldown, int) and cooldown >= 0 and minimum >= 0):
            raise ArgumentError(
                "ReduceOnPlateau's parameters are out of range",
                expected="factor in (0, 1), cooldown >= 0, minimum >= 0",
                found=f"factor={factor}, cooldown={cooldown}, minimum={minimum}",
            )
        self.factor, self.cooldown, self.minimum = factor, cooldown, minimum
        self.resting = 0

    def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        """Compare with the best so far, and reduce the learning rate if it is time."""
        self.compare(metrics)
        if self.resting:
            self.resting -= 1
            self.waited = 0
        if self.waited > self.patience:
            rate = run.training_step.lr
            now = rate.item()
            rate.update(min(now, max(now * self.factor, self.minimum)))
            self.resting, self.waited = self.cooldown, 0

    def state(self) -> dict[str, Any]:
        """Return the best value, how long ago it was, and the evaluations that do not count."""
        return {**super().state(), "resting": self.resting}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` returned."""
        super().load_state(state)
        self.resting = state["resting"]
