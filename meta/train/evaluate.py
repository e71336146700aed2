"""Evaluation: the mean loss and metrics of a model over data, in infer mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

import meta.amp
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError
from meta.base.progress import bar
from meta.model.model import Model
from meta.runtime.ndarray import ndarray
from meta.train import random_state
from meta.train.data import Feed
from meta.train.objective import Evaluation, Loss
from meta.train.runner import Runner


def evaluate(
    model: Model,
    loss: Loss,
    data: Iterable[Any],
    *,
    metrics: Mapping[str, Loss] | None = None,
    amp: str | None = None,
    executor: str = "vm",
) -> dict[str, float]:
    """Return the mean loss, as "loss", and metrics of a model over data.

    Parameters
    ----------
    model, loss, data, amp, executor: as for `fit`. The data are passed over once.
    metrics: by name, functions ``(model_result, *targets) -> scalar`` as the loss is.

    The model is in infer mode meanwhile, and afterwards in the mode that it was in; the random
    generators are left as they were. A batch counts by its number of samples. Raises ArgumentError
    for data without a batch.
    """
    return Evaluator(model, loss, metrics or {}, amp, executor).run(data)


class Evaluator:
    """Evaluates one model, again and again; compiled programs are kept."""

    def __init__(
        self, model: Model, loss: Loss, metrics: Mapping[str, Loss], amp: str | None, executor: str
    ) -> None:
        if taken := metrics.keys() & {"loss", "step", "average"}:
            raise ArgumentError(
                "a metric cannot be called so: these names are taken", found=", ".join(taken)
            )
        self.model, self.loss = model, loss
        evaluation: Model = Evaluation(model, loss, metrics)
        if amp is not None:
            evaluation = meta.amp.autocast(evaluation, dtype=amp)
        self._runner = Runner(evaluation, executor)

    def run(self, data: Iterable[Any]) -> dict[str, float]:
        """Return the means over ``data``."""
        feed = Feed(data, device_of(self.model))
        found: list[dict[str, ndarray]] = []
        weights: list[int] = []
        with (
            random_state.preserved(feed.generators),
            in_mode(False, self.model, self.loss),
            bar(feed.length(), "evaluation", delay=1) as progress,
        ):
            while (batch := feed.take()) is not None:
                found.append(self._runner(batch.inputs, batch.targets))
                weights.append(batch.samples)
                progress.update()
        return {name: _mean([f[name] for f in found], weights) for name in found[0]}


def device_of(model: Model) -> Device:
    """Return where a model's arrays are; the CPU for one without arrays."""
    return next((a.device for a in model.state().values()), CPU)


@contextmanager
def in_mode(training: bool, *models: Any) -> Iterator[None]:
    """Switch models, and those inside, to a mode for a block; what is no model is left out."""
    inside = [m for model in models if isinstance(model, Model) for m in model.models()]
    modes = [(m, m.training) for m in inside]
    for model in inside:
        model.set_mode(training)
    try:
        yield
    finally:
        for model, was_training in modes:  # a model comes before those inside of it
            model.set_mode(was_training)


def _mean(values: list[ndarray], weights: list[int]) -> float:
    """Return the weighted mean; the device is waited for here, once."""
    stacked = torch.stack([v.torch() for v in values]).cpu().double()
    return float((stacked * torch.tensor(weights)).sum() / sum(weights))
