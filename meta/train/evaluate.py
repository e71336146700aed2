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
from meta.train.metric import Metric
from meta.train.objective import Evaluation, Loss
from meta.train.runner import Runner


def evaluate(
    model: Model,
    loss: Loss,
    data: Iterable[Any],
    *,
    metrics: Mapping[str, Loss | Metric] | None = None,
    amp: str | None = None,
    executor: str = "vm",
) -> dict[str, float]:
    """Return the mean loss, as "loss", and metrics of a model over data.

    Parameters
    ----------
    model, loss, data, amp, executor: as for `fit`. The data are passed over once.
    metrics: by name, `Metric`s, such as ``F1()``, which count over all batches, or functions
        ``(model_result, *targets) -> scalar`` as the loss is.

    The model is in infer mode meanwhile, and afterwards in the mode that it was in; the random
    generators are left as they were. In means of functions a batch counts by its number of samples.
    Raises ArgumentError
    for data without a batch.
    """
    return Evaluator(model, loss, metrics or {}, amp, executor).run(data)


class Evaluator:
    """Evaluates one model, again and again; compiled programs are kept."""

    def __init__(
        self,
        model: Model,
        loss: Loss,
        metrics: Mapping[str, Loss | Metric],
        amp: str | None,
        executor: str,
    ) -> None:
        for name, metric in metrics.items():
            if isinstance(metric, Metric) and not metric.is_number:
                raise ArgumentError(
                    f"the metric {name!r} is no number",
                    found=repr(metric),
                    hint="count it alone: metric.update(model(x), labels), metric.compute()",
                )
        if taken := metrics.keys() & {"loss", "step", "average"}:
            raise ArgumentError(
                "a metric cannot be called so: these names are taken", found=", ".join(taken)
            )
        self.model, self.loss = model, loss
        self._counting = {n: m for n, m in metrics.items() if isinstance(m, Metric)}
        self._names = ("loss", *metrics)
        evaluation: Model = Evaluation(model, loss, metrics)
        if amp is not None:
            evaluation = meta.amp.autocast(evaluation, dtype=amp)
        self._runner = Runner(evaluation, executor)

    def run(self, data: Iterable[Any]) -> dict[str, float]:
        """Return the means, and what is counted, over ``data``."""
        for metric in self._counting.values():
            metric.reset()
        feed = Feed(data, device_of(self.model))
        found: list[dict[str, ndarray]] = []
        weights: list[int] = []
        with (
            random_state.preserved(feed.generators),
            in_mode(False, self.model, self.loss),
            bar(feed.length(), "evaluation", delay=1) as progress,
        ):
            while (batch := feed.take()) is not None:
                values = self._runner(batch.inputs, batch.targets)
                for name, metric in self._counting.items():
                    metric.add(values[name])
                found.append({n: v for n, v in values.items() if n not in self._counting})
                weights.append(batch.samples)
                progress.update()
        means = {name: _mean([f[name] for f in found], weights) for name in found[0]}
        counted = {name: metric.compute() for name, metric in self._counting.items()}
        both = means | counted
        return {name: both[name] for name in self._names}


def device_of(model: Model) -> Device:
    """Return where a model's arrays are; the CPU for one without arrays."""
    return next((a.device for a in model.state().values()), CPU)


@contextmanager
def in_mode(training: bool, *models: Any) -> Iterator[None]:
    """Switch models, and those inside, to a mode for a block; what is no model is left out."""
    inside = [m for model in models if isinstance(model, Model) for m in model.models()]
    modes = [(m, m.training) for m in inside]
    for model in inside:
        model.train(training)
    try:
        yield
    finally:
        for model, was_training in modes:  # a model comes before those inside of it
            model.train(was_training)


def _mean(values: list[ndarray], weights: list[int]) -> float:
    """Return the weighted mean; the device is waited for here, once."""
    stacked = torch.stack([v.torch() for v in values]).cpu().double()
    return float((stacked * torch.tensor(weights)).sum() / sum(weights))
