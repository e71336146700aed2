"""Evaluation: the mean loss and metrics of a model over data, in infer mode; and `Runner`: a model
as a run executes it, compiled once per shape of its arguments, or interpreted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

import meta.amp
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError
from meta.base.progress import bar
from meta.grad.core import no_grad
from meta.model.model import Model
from meta.op.core import tree
from meta.runtime.ndarray import ndarray
from meta.train import random_state
from meta.train.data import Feed
from meta.train.metric import Metric
from meta.train.objective import Evaluation, Loss
from meta.train.process_group import SINGLE_PROCESS, MeshLike, ProcessGroup, group_on_mesh
from meta.vm.compilation import compile
from meta.vm.executable import Executable

EXECUTORS = ("vm", "interpreter")
MANY_SHAPES = 16
"""So many programs for one model are told: each new shape compiles for seconds."""


class Runner:
    """Calls a model. Nothing is recorded for `backward`.

    Parameters
    ----------
    model: what is run, in the mode that it is in when arguments of a shape are first met.
    executor: "vm" or "interpreter".

    Attributes
    ----------
    compile_seconds: the time that first calls took so far, compiling included.
    executables: the compiled programs, in the order of the shapes met.
    """

    def __init__(self, model: Model, executor: str) -> None:
        if executor not in EXECUTORS:
            raise ArgumentError(
                "there is no such executor", expected=" or ".join(EXECUTORS), found=repr(executor)
            )
        self.model, self.executor = model, executor
        self._runs: dict[Any, Callable[..., Any]] = {}
        self.executables: list[Executable] = []
        self.compile_seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        key = (tuple([leaf.key for leaf in leaves]), tree.fingerprint(structure))
        run = self._runs.get(key)
        return self._first(key, args) if run is None else run(*args)

    def _first(self, key: Any, args: tuple[Any, ...]) -> Any:
        """Run for arguments of new shapes. The interpreter's kernels are compiled on the way."""
        start = time.perf_counter()
        run = self._runs[key] = self._compiled(args) if self.executor == "vm" else self._interpreted
        result = run(*args)
        self.compile_seconds += time.perf_counter() - start
        return result

    def _compiled(self, args: tuple[Any, ...]) -> Executable:
        self.executables.append(compile(self.model, *args))
        if len(self.executables) == MANY_SHAPES:
            warnings.warn(
                f"the batches had {MANY_SHAPES} different shapes so far, and each is compiled on "
                "its own; pad them to a few sizes",
                stacklevel=2,
            )
        return self.executables[-1]

    def _interpreted(self, *args: Any) -> Any:
        with no_grad():
            return self.model(*args)


def evaluate(
    model: Model,
    loss: Loss,
    data: Iterable[Any],
    *,
    metrics: Mapping[str, Loss | Metric] | None = None,
    amp: str | None = None,
    executor: str = "vm",
    mesh: MeshLike | None = None,
    over: str = "dp",
) -> dict[str, float]:
    """Return the mean loss, as "loss", and metrics of a model over data.

    Parameters
    ----------
    model, loss, data, amp, executor: as for `fit`. The data are passed over once.
    mesh, over: as for `fit`: each rank evaluates its share of the rows, and each row is counted
        once. The model's arrays become those of the first rank; so is the result the same on all.
    metrics: by name, `Metric`s, such as ``F1()``, which count over all batches, or functions
        ``(model_result, *targets) -> scalar`` as the loss is.

    The model is in infer mode meanwhile, and afterwards in the mode that it was in; the random
    generators are left as they were. In means of functions a batch counts by its number of samples.
    Raises ArgumentError
    for data without a batch.

    >>> import numpy as np
    >>> data = meta.train.Batches(np.ones((4, 3), "float32"), np.array([0, 1, 0, 1]), 2)
    >>> sorted(meta.train.evaluate(meta.model.Linear(3, 2), meta.cross_entropy, data))
    ['loss']
    """
    with group_on_mesh(mesh, over) as group:
        for one in (model, loss):
            if isinstance(one, Model):
                group.broadcast_arrays(one)
        return Evaluator(model, loss, metrics or {}, amp, executor, group).run(data)


class Evaluator:
    """Evaluates one model, again and again; compiled programs are kept."""

    def __init__(
        self,
        model: Model,
        loss: Loss,
        metrics: Mapping[str, Loss | Metric],
        amp: str | None,
        executor: str,
        group: ProcessGroup = SINGLE_PROCESS,
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
        self.model, self.loss, self.group = model, loss, group
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
        feed = Feed(data, device_of(self.model), self.group, even=False)
        found: dict[str, list[ndarray]] = {n: [] for n in self._names if n not in self._counting}
        weights: list[int] = []
        with (
            random_state.fork_rng(feed.generators),
            training_mode(False, self.model, self.loss),
            bar(feed.length(), "evaluation", delay=1, shown=self.group.is_rank_zero) as progress,
        ):
            while (batch := feed.take()) is not None:
                values = self._runner(batch.inputs, batch.targets)
                if batch.counts:
                    for name, metric in self._counting.items():
                        metric.add(values[name])
                    for name, kept in found.items():
                        kept.append(values[name])
                    weights.append(batch.samples)
                progress.update()
        sums = {name: _weighted_sum(values, weights) for name, values in found.items()}
        of_ranks = self.group.gather((sums, sum(weights)), "an evaluation", along=True)
        total = sum(weight for _, weight in of_ranks)
        means = {name: sum(its[name] for its, _ in of_ranks) / total for name in found}
        for metric in self._counting.values():
            if self.group.size > 1:
                metric.join(self.group.gather(metric.kept(), "a metric", along=True))
        counted = {name: metric.compute() for name, metric in self._counting.items()}
        both = means | counted
        return {name: both[name] for name in self._names}


def device_of(model: Model) -> Device:
    """Return where a model's arrays are; the CPU for one without arrays."""
    return next((a.device for a in model.state().values()), CPU)


@contextmanager
def training_mode(training: bool, *models: Any) -> Iterator[None]:
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


def _weighted_sum(values: list[ndarray], weights: list[int]) -> float:
    """Return the weighted sum; the device is waited for here, once."""
    if not values:
        return 0.0
    stacked = torch.stack([v.tensor for v in values]).cpu().double()
    return float((stacked * torch.tensor(weights)).sum())
