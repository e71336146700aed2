"""`fit`: trains a model. What the user gave is checked here, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import meta.amp
from meta.base.device import require
from meta.base.errors import ArgumentError
from meta.model.model import Model
from meta.optim import Optimizer, StepMaker, TrainingStep
from meta.train import random_state
from meta.train.callback import Callback, MetricMonitor, ReduceOnPlateau
from meta.train.checkpoint import CheckpointFolder
from meta.train.data import Feed
from meta.train.evaluate import Evaluator, device_of, training_mode
from meta.train.log import loggers
from meta.train.metric import Metric
from meta.train.objective import Loss, Objective
from meta.train.process_group import MeshLike, ProcessGroup, group_on_mesh, require_data_parallel
from meta.train.record import Record
from meta.train.run import Limits, Monitoring, Run


def fit(
    model: Model,
    loss: Loss,
    data: Iterable[Any],
    optimizer: StepMaker,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    eval_data: Iterable[Any] | None = None,
    eval_every: int | None = None,
    metrics: Mapping[str, Loss | Metric] | None = None,
    eval_average: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    keep: int = 2,
    schedule: Callable[[int], float] | None = None,
    log: Any = None,
    log_every: int = 1,
    amp: str | None = None,
    executor: str = "vm",
    device: object = None,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    mesh: MeshLike | None = None,
    over: str = "dp",
) -> Record:
    """Train a model, in place, and return a record of the run. docs/training.md shows all of it.

    Parameters
    ----------
    model: its forward is decorated with `meta.model.trace`. It is put into train mode, unless it is
        in it (models inside that are in infer mode then stay so).
    loss: a function ``(model_result, *targets) -> scalar`` written with operators, or a `Model`,
        whose parameters are trained too.
    data: any iterable of pairs (inputs, targets), a torch DataLoader, or `Batches`. Inputs and
        targets are each an array (numpy, torch or meta), a tuple of arrays, or a dict by argument
        name; targets may be None. Each shape of a batch is compiled once.
    optimizer: what ``meta.optim.<name>.with_<name>(...)`` returns.
    steps, epochs: the length of the run, one of them, counted from its very beginning. Data are
        iterated anew as often as needed; an iterator, which gives its batches once, must last.
    eval_data, eval_every: data for `evaluate`, after so many steps, by default after each epoch;
        and at the end. metrics: by name, for the evaluation, `Metric`s, such as ``F1()``, or
        functions as ``loss`` is.
    eval_average: whether the average of the parameters that the optimizer keeps (``ema=``) is
        evaluated, or the parameters; by default the average, if there is one.
    checkpoint: a folder. A checkpoint is written every ``checkpoint_every`` steps, by default after
        each epoch; at the end; and at Ctrl-C. The newest ``keep`` stay.
    resume: go on from the newest checkpoint in the folder, bit for bit as if nothing had happened
        (on the CPU). If False, a folder that holds checkpoints is refused.
    schedule: a function from the number of the step, from 0, to a factor for the optimizer's
        learning rate (`meta.optim.schedule`). Without one, the learning rate is an array of the
        training step, and as such in the checkpoint.
    log: a path that ends in .csv or .jsonl, or in .png, .svg or .pdf for a picture of the learning
        curves (`Curves`, which needs matplotlib), a logger, or a list of them. log_every: a row for
        every so many steps.
    amp: "float16" or "bfloat16", for mixed precision (`meta.amp.autocast`).
    executor: "vm" (compiled) or "interpreter".
    device: where to train; the model is moved there. By default where it is.
    seed: of the generators of meta (dropout), torch, numpy and Python, set when a run begins; a
        run that is resumed goes on with the state in the checkpoint.
    callbacks: see `Callback`.
    mesh: trains data parallel on a mesh (`meta.distributed.Mesh`, or its sizes), along its axis
        ``over``; all ranks call fit. A batch is that of all ranks, each takes its rows (see
        `meta.train.data`). Losses, metrics, the end of the run and Ctrl-C are the same for all
        ranks, and the first one shows progress and writes logs and checkpoints. docs/distributed.md
        says more.

    Ctrl-C ends a run behind a whole step, writes a checkpoint, and raises KeyboardInterrupt.

    Raises ArgumentError for arguments that do not fit, FormatError for a checkpoint that is damaged
    or of another model, NonFiniteError for a loss that is not finite (with a loss scale: for too
    many steps in a row that had to be left out), DistributedError for ranks that do not go on
    together, and what data, model and callbacks raise.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 64, dtype="float32").reshape(64, 1)
    >>> meta.random.seed(0)
    >>> net = meta.model.Linear(1, 1)
    >>> data = meta.train.Batches(x, 3 * x, 16, seed=0)
    >>> record = meta.train.fit(net, meta.mse_loss, data, meta.optim.with_adam(lr=0.1), epochs=20)
    >>> round(net.weight.item(), 1)
    3.0
    """
    _require_kinds(model, loss, optimizer)
    limits = Limits(steps, epochs, eval_every, checkpoint_every, log_every)
    _require_limits(limits)
    _require_use(
        eval_data is not None,
        "eval_data",
        eval_every=eval_every,
        metrics=metrics,
        eval_average=eval_average,
    )
    _require_use(checkpoint is not None, "checkpoint", checkpoint_every=checkpoint_every)
    _require_callbacks(callbacks, eval_data, schedule)
    _require_metrics(metrics)
    _require_often_enough(data, eval_data, epochs)
    _require_schedule_and_seed(schedule, seed)
    checkpoints = None if checkpoint is None else CheckpointFolder(checkpoint, keep)
    written = loggers(log)
    if device is not None:
        model.to(device=require(device))
        if isinstance(loss, Model):
            loss.to(device=require(device))
    with (
        group_on_mesh(mesh, over) as group,
        nullcontext() if model.training else training_mode(True, model),
        nullcontext()
        if checkpoints is None
        else group.within_rank_zero("locking the folder of checkpoints", checkpoints.locked()),
    ):
        if checkpoints is not None and not resume and (found := checkpoints.steps()):
            raise ArgumentError(
                "with resume=False the run begins anew, and there are checkpoints already",
                found=f"{checkpoints.path(found[-1])}",
                hint="remove them, or give another folder",
            )
        if seed is not None:
            random_state.seed_all(seed)
        objective: Model = Objective(model, loss)
        if amp is not None:
            objective = meta.amp.autocast(objective, dtype=amp)
        training_step = _training_step(optimizer, objective, group)
        feed = Feed(data, device_of(model), group)
        if not group.alone:  # the order of data is drawn alike
            random_state.broadcast(group, feed.generators)
        monitoring = Monitoring(
            None
            if eval_data is None
            else Evaluator(model, loss, metrics or {}, amp, executor, group),
            eval_data or (),
            tuple(metrics or ()),
            written if group.is_rank_zero else [],
            tuple(callbacks),
            _evaluates_average(eval_average, training_step),
        )
        run = Run(
            model,
            objective,
            training_step,
            feed,
            executor,
            limits,
            schedule,
            checkpoints,
            monitoring,
            group,
        )
        run.resume()
        return run.go()


def _training_step(optimizer: StepMaker, objective: Model, group: ProcessGroup) -> TrainingStep:
    along = {"over": group.over} if group.over and "over" in signature(optimizer).parameters else {}
    made = optimizer(objective, **along)
    if not isinstance(made, TrainingStep):
        raise ArgumentError(
            "the optimizer does not make a training step",
            expected="what a with_<name> of meta.optim returns",
            found=type(made).__name__,
        )
    require_data_parallel(group, None if made.ranks is None else made.ranks.over)
    return made


def _evaluates_average(wanted: bool | None, step: TrainingStep) -> bool | None:
    """Return whether the average is evaluated; None where there is none."""
    if step.average is not None:
        return wanted is not False
    if wanted:
        raise ArgumentError(
            "eval_average=True, and the optimizer keeps no average",
            hint="with_adamw(..., ema=0.999) does",
        )
    return None


def _require_kinds(model: Any, loss: Any, optimizer: Any) -> None:
    if not isinstance(model, Model):
        raise ArgumentError(
            "what is trained is a meta.Model",
            found=type(model).__name__,
            hint="meta.frontend.from_torch(module, (x,)) makes one of a torch module",
        )
    model.traced_entry()
    if not callable(loss):
        raise ArgumentError(
            "the loss is a function (model_result, *targets) -> scalar, or a meta.Model",
            found=type(loss).__name__,
        )
    if getattr(loss, "__module__", type(loss).__module__).split(".")[0] == "torch":
        raise ArgumentError(
            "the loss is written with operators of meta, and this one is torch's",
            found=repr(loss),
            hint="meta.cross_entropy, or another function of scores and labels",
        )
    is_class = isinstance(optimizer, type) and issubclass(optimizer, Optimizer)
    if is_class or isinstance(optimizer, Optimizer) or not callable(optimizer):
        raise ArgumentError(
            "the optimizer is what a with_<name> of meta.optim returns",
            expected="for example meta.optim.with_adamw(1e-3)",
            found=getattr(optimizer, "__name__", type(optimizer).__name__),
            hint="the classes of meta.optim are for loops of one's own",
        )


def _require_limits(limits: Limits) -> None:
    if (limits.steps is None) == (limits.epochs is None):
        raise ArgumentError(
            "the length of a run is told in steps or in epochs",
            expected="one of steps= and epochs=",
            found=f"steps={limits.steps}, epochs={limits.epochs}",
        )
    for name in limits.__slots__:
        value = getattr(limits, name)
        if value is not None and (type(value) is not int or value < 1):
            raise ArgumentError(f"{name} is a count", expected="an int >= 1", found=repr(value))


def _require_use(given: bool, of: str, **settings: object) -> None:
    """Refuse a setting that would do nothing."""
    for name, value in settings.items():
        if value is not None and not given:
            raise ArgumentError(f"{name} does nothing without {of}", hint=f"pass {of}=, too")


def _require_callbacks(callbacks: Any, eval_data: object, schedule: object) -> None:
    if not isinstance(callbacks, Iterable):
        raise ArgumentError(
            "callbacks are several", found=type(callbacks).__name__, hint="a list: [callback]"
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ArgumentError(
                "callbacks are objects with the methods of meta.train.Callback",
                found=type(callback).__name__,
                hint="derive a class from it, and override the methods that you need",
            )
        if isinstance(callback, MetricMonitor) and eval_data is None:
            who = type(callback).__name__
            raise ArgumentError(f"{who} needs an evaluation", hint="pass eval_data=, too")
        if isinstance(callback, ReduceOnPlateau) and schedule is not None:
            raise ArgumentError(
                "ReduceOnPlateau and a schedule both set the learning rate",
                hint="leave one of them out",
            )


def _require_metrics(metrics: Any) -> None:
    if metrics is None or (isinstance(metrics, Mapping) and all(map(_is_metric, metrics.values()))):
        return
    raise ArgumentError(
        "metrics are given by name",
        expected="a dict of metrics, or of functions (model_result, *targets) -> scalar",
        found=repr(metrics),
        hint='{"accuracy": meta.train.Accuracy()}',
    )


def _is_metric(value: object) -> bool:
    return isinstance(value, Metric) or (callable(value) and not isinstance(value, type))


def _require_often_enough(data: object, eval_data: object, epochs: int | None) -> None:
    hint = "pass an iterable: a list, a DataLoader, an object with __iter__"
    if isinstance(data, Iterator) and epochs is not None and epochs > 1:
        raise ArgumentError(
            "an iterator gives its batches once", found=f"epochs={epochs}", hint=hint
        )
    if isinstance(eval_data, Iterator):
        raise ArgumentError("eval_data is an iterator, and used more than once", hint=hint)


def _require_schedule_and_seed(schedule: object, seed: object) -> None:
    if schedule is not None and not callable(schedule):
        raise ArgumentError("a schedule is a function of the step number", found=repr(schedule))
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise ArgumentError("a seed is an int", expected="0 <= seed < 2**63", found=repr(seed))
