"""`Run`: the loop of a training run. `fit` checks what the user gave and makes one."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

from meta.base import config
from meta.base.errors import NonFiniteError
from meta.base.progress import bar
from meta.grad.core import no_grad
from meta.model.model import Model
from meta.op.core import tree
from meta.optim import TrainingStep
from meta.runtime.mesh import ranks_text
from meta.runtime.ndarray import array, ndarray
from meta.train import random_state
from meta.train.batch import Batch
from meta.train.callback import Callback
from meta.train.checkpoint import CheckpointFolder
from meta.train.data import Feed
from meta.train.evaluate import Evaluator, Runner
from meta.train.log import Logger, Row, columns
from meta.train.objective import MeanOverRanks, loss_dtype
from meta.train.process_group import SINGLE_PROCESS, ProcessGroup, SyncInterval
from meta.train.record import Meter, Record
from meta.train.run_state import RunState
from meta.vm.eager.nan_checks import kinds_of


class InterruptHandler:
    """Holds back the first Ctrl-C of a block, so that no step is left half done; the second one is
    raised at once. A context manager.

    It stands aside outside of the main thread, where no Ctrl-C arrives, and where the program has a
    handler of its own.

    Attributes
    ----------
    requested: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> InterruptHandler:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


MAX_NAMES = 5


def divergence_error(
    what: str, training_step: Model, dy: Any, batch: Batch, group: ProcessGroup = SINGLE_PROCESS
) -> NonFiniteError:
    """Return the error for a run that cannot go on, because of ``what``.

    Data that are no numbers are told first. A copy of the step is run once more on a batch,
    operator by operator: the first one that makes a NaN or an infinity of values without is named,
    with its line and the types of its arguments. If the weights are not finite already, that cannot
    be told any more.
    """
    given = tree.flatten((batch.inputs, batch.targets))[0]
    nan, _ = kinds_of(a.tensor for a in given)
    nans = [rank for rank, its in enumerate(group.gather(bool(nan), "the data")) if its]
    if nans:
        where = "" if group.alone else f", on {ranks_text(nans)}"
        return NonFiniteError(
            what,
            found=f"NaN in the data, in the last batch{where}",
            hint="look at what the data yield: numpy.isfinite(x).all()",
        )
    arrays = {n: a for n, a in training_step.state().items() if any(kinds_of([a.tensor]))}
    if arrays:
        names = ", ".join(list(arrays)[:MAX_NAMES]) + (", ..." if len(arrays) > MAX_NAMES else "")
        return NonFiniteError(
            what,
            found=f"arrays that are not finite now: {names}",
            hint="lower the learning rate or clip gradients; run with META_DEBUG_NANS=inf, from "
            "the last checkpoint, to stop at the operator that begins it",
        )
    if not group.alone:  # one rank would stop, and the others wait for it
        return NonFiniteError(
            what, hint="run with META_DEBUG_NANS=inf to stop at the operator that begins it"
        )
    own = copy.deepcopy(training_step)
    try:
        with random_state.fork_rng(), no_grad(), config.override(META_DEBUG_NANS="inf"):
            own(dy, batch.inputs, batch.targets)
    except NonFiniteError as error:
        error.note(what)
        return error
    return NonFiniteError(
        what,
        found="the last batch, run once more, gives finite values",
        hint="run with META_DEBUG_NANS=inf to stop at the operator that begins it",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run is, and what happens when; None: see `fit`."""

    steps: int | None
    epochs: int | None
    eval_every: int | None
    checkpoint_every: int | None
    log_every: int


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What looks at a run from outside: evaluation, logs and callbacks.

    Attributes
    ----------
    of_average: whether the average of the parameters is evaluated; None where there is none.
    """

    evaluator: Evaluator | None
    eval_data: Iterable[Any]
    metrics: Sequence[str]
    loggers: Sequence[Logger]
    callbacks: Sequence[Callback]
    of_average: bool | None = None


class Run:
    """A run under way; callbacks are given it.

    Attributes
    ----------
    model: what is trained. training_step: what a step calls; its ``lr`` is an array.
    step: how many steps are done. epoch: the number of the epoch, from 0. record: what happened.
    group: the ranks of the run, of which each has one.

    >>> class UntilTwo(meta.train.Callback):
    ...     def on_step(self, run):
    ...         if run.step == 2:
    ...             run.stop("two are enough")
    >>> x = meta.ones((4, 1))
    >>> data, sgd = meta.train.Batches(x, x, 2), meta.optim.with_sgd()
    >>> net = meta.model.Linear(1, 1)
    >>> meta.train.fit(net, meta.mse_loss, data, sgd, epochs=9, callbacks=[UntilTwo()]).stopped
    'two are enough'
    """

    def __init__(
        self,
        model: Model,
        objective: Model,
        training_step: TrainingStep,
        feed: Feed,
        executor: str,
        limits: Limits,
        schedule: Callable[[int], float] | None,
        checkpoints: CheckpointFolder | None,
        monitoring: Monitoring,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.model, self.training_step, self.group = model, training_step, group
        self.step = 0
        self._objective, self._feed, self._limits = objective, feed, limits
        step: Model = training_step
        if group.size > 1:
            step = MeanOverRanks(training_step, group.over, group.size)
        self._runner = Runner(step, executor)
        self.record = Record(training_step, self._runner.executables)
        self._schedule, self._checkpoints, self._monitoring = schedule, checkpoints, monitoring
        self._base_rate = float(training_step.lr.item())
        self._run_state = RunState(
            model, training_step, self._base_rate, feed, monitoring.callbacks
        )
        # The learning rate as a number, and the state of the array that it was read from.
        self._rate, self._rate_read = self._base_rate, (0, -1)
        self._meter, self._sync = Meter(), SyncInterval(group)
        self._dy: ndarray | None = None
        self._last: tuple[Batch, ndarray] | None = None
        self._evaluated_at = self._saved_at = -1
        self._stop = ""
        self._in_step = self._stopped_by_user = False

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        return self._feed.epoch

    @property
    def last_loss(self) -> float:
        """The loss of the last step; asking for it waits for the device. NaN before the first."""
        return math.nan if self._last is None else float(self._last[1].item())

    def stop(self, why: str) -> None:
        """End the run behind this step; called in a method of a callback, on any rank."""
        self._stop = self._stop or why

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        if self._checkpoints is None:
            return
        found = self._checkpoints.newest()
        step = None if found is None else found.step
        self.group.require_same(step, "the newest checkpoint", "give a folder that all ranks see")
        if found is None:
            return
        self._run_state.load(found, self.group)
        self.step = self.record.first_step = self._saved_at = found.step
        self.record.checkpoint = self._checkpoints.path(found.step)
        before = found.more["base_rate"]
        if self._schedule is None and before != self._base_rate and self.group.is_rank_zero:
            warnings.warn(
                f"the run goes on with the learning rate of its checkpoint, which began with "
                f"{before:g}, not with {self._base_rate:g}, as is stated now; with schedule= "
                "what is stated counts",
                stacklevel=3,
            )

    def go(self) -> Record:
        """Train to the end, and return the record."""
        first = self.step
        marked = () if self._monitoring.of_average is None else ("average",)
        of_evaluations = (*self._monitoring.metrics, *marked)
        try:
            for logger in self._monitoring.loggers:
                logger.open(columns(of_evaluations), self.step)
            self._tell("on_begin")
            shown = bar(self._total(), "training", done=first, shown=self.group.is_rank_zero)
            with InterruptHandler() as interrupts, shown as progress:
                self._run(interrupts, progress)
        finally:
            for logger in self._monitoring.loggers:
                logger.close()
        return self.record

    def _run(self, interrupts: InterruptHandler, progress: Any) -> None:
        try:
            self._train(interrupts, progress)
            self._finish()
            if self._is_interrupted(interrupts, True):
                raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            # Else it is the second Ctrl-C: half of a step is done, or ranks are at other places.
            if not self._in_step and (self.group.alone or self._stopped_by_user):
                self._read_losses()
                self._save()
                kept = self.record.checkpoint
                where = "" if kept is None else f"; kept in {kept}"
                interrupt.args = (f"at step {self.step}{where}",)
            raise

    def _train(self, interrupts: InterruptHandler, progress: Any) -> None:
        self._meter.resume()
        while not self._is_over():
            try:
                batch = self._feed.take()
            except Exception:
                if interrupts.requested:  # Ctrl-C reaches a loader's workers, too
                    raise KeyboardInterrupt from None
                raise
            looks = False
            if batch is None:
                self._end_epoch()
            else:
                self._one_step(batch)
                progress.update()
                looks = self._after_step(progress)
            if self._is_interrupted(interrupts, looks):
                raise KeyboardInterrupt

    def _is_interrupted(self, interrupts: InterruptHandler, looks: bool) -> bool:
        """Return whether Ctrl-C was pressed; on some rank, if there are others: they are asked when
        all look up.
        """
        if self.group.alone:
            return interrupts.requested
        self._stopped_by_user = looks and self._sync.synchronize(interrupts.requested, self._rate)
        return self._stopped_by_user

    def _tell(self, method: str, *args: Any) -> None:
        """Call a method of the callbacks. If one of them ends the run on some rank, it ends on all:
        with a callback that has the method, all ranks exchange this.
        """
        nothing = getattr(Callback, method)
        methods = [getattr(callback, method) for callback in self._monitoring.callbacks]
        called = [m for m in methods if getattr(m, "__func__", m) is not nothing]
        for one in called:
            one(self, *args)
        if called:
            given = self.group.gather(self._stop, "the end of the run")
            self._stop = next(filter(None, given), "")

    def _is_over(self) -> bool:
        if self._limits.steps is not None and self.step >= self._limits.steps:
            self.stop(f"{self.step} steps are done")
        if self._limits.epochs is not None and self._feed.epoch >= self._limits.epochs:
            self.stop(f"{self._feed.epoch} epochs are done")
        return bool(self._stop)

    def _one_step(self, batch: Batch) -> None:
        self._in_step = True  # until the step is counted: weights and counters belong together
        if self._dy is None:
            dtype = loss_dtype(self._objective, batch)
            self._dy = array(1.0, dtype=dtype, device=self._feed.device)
        self._set_learning_rate()
        compiling = self._runner.compile_seconds
        loss = self._runner(self._dy, batch.inputs, batch.targets)
        self._last = batch, loss
        self._meter.leave_out(self._runner.compile_seconds - compiling)
        self.step += 1
        samples = batch.samples * self.group.size
        self._meter.add(self.step, self._feed.epoch, loss, self._rate, samples)
        self._in_step = False

    def _set_learning_rate(self) -> None:
        """Follow the schedule; without one, what a callback may have written."""
        array = self.training_step.lr
        if self._schedule is not None:
            rate = self._base_rate * float(self._schedule(self.step))
            if rate != self._rate or self.step == self.record.first_step:
                array.update(rate)
                self._rate = rate
            return
        tensor = array.tensor
        state = tensor.data_ptr(), tensor._version
        if state != self._rate_read:  # reading it waits for the device
            self._rate, self._rate_read = array.item(), state

    def _after_step(self, progress: Any) -> bool:
        """Do what is due behind a step; return whether losses were read because it was time."""
        scale = self.training_step.loss_scale  # read often enough to see that steps were left out
        looks = self._meter.due if self.group.alone else self._sync.due()
        if looks or (scale is not None and self.step % scale.max_bad_steps == 0):
            self._read_losses()
            speed = f"{self._meter.samples_per_second:.0f} samples/s"
            progress.set_postfix_str(f"loss {self.record.losses[-1]:.4g}, {speed}", refresh=False)
        self._tell("on_step")
        if self._limits.eval_every is not None and self.step % self._limits.eval_every == 0:
            self._evaluate()
        every = self._limits.checkpoint_every
        if every is not None and self.step % every == 0:
            self._save()
        return looks

    def _end_epoch(self) -> None:
        if self._limits.eval_every is None:
            self._evaluate()
        self._tell("on_epoch")
        if self._limits.checkpoint_every is None:
            self._save()

    def _finish(self) -> None:
        evaluator = self._monitoring.evaluator
        if self.step > self.record.first_step:
            self._evaluate()
        elif evaluator is not None and self._evaluated_at != self.step:
            self._measure(evaluator)  # it was over before: logs and callbacks have been told then
        self._read_losses()
        record = self.record
        record.epoch, record.stopped = self._feed.epoch, self._stop
        record.seconds, record.samples = self._meter.seconds, self._meter.samples
        record.compile_seconds = self._runner.compile_seconds
        self._tell("on_end")
        self._save()

    def _evaluate(self) -> None:
        evaluator = self._monitoring.evaluator
        if evaluator is None or self._evaluated_at == self.step:
            return
        self._read_losses()
        found = self._measure(evaluator)
        self._log(
            {"step": self.step, "time": time.time(), **{f"eval.{k}": v for k, v in found.items()}}
        )
        self._tell("on_evaluation", found)
        self._meter.resume()

    def _measure(self, evaluator: Evaluator) -> dict[str, float]:
        """Evaluate, and put into the record what was found."""
        of_average = self._monitoring.of_average
        self.group.broadcast_arrays(self._objective, trained=False)
        step = self.training_step
        with step.averaged() if of_average else nullcontext(), step.gathered():
            found: dict[str, float] = evaluator.run(self._monitoring.eval_data)
        if of_average is not None:
            found["average"] = float(of_average)
        self._evaluated_at = self.step
        self.record.evaluations.append({"step": self.step, **found})
        return found

    def _save(self) -> None:
        """Write a checkpoint, of losses and parameters that were found finite."""
        if self._checkpoints is None or self._saved_at == self.step:
            return
        self._read_losses()
        parameters = self.training_step.model.parameters()
        wrong = any(kinds_of(a.tensor for a in parameters))
        if self.group.any(wrong, "finite parameters"):
            raise self._diverged(f"parameters are not finite behind step {self.step}")
        for logger in self._monitoring.loggers:
            logger.flush()
        self.group.broadcast_arrays(self._objective, trained=False)
        self.record.checkpoint = self._run_state.write(self._checkpoints, self.step, self.group)
        self._saved_at = self.step
        self._meter.resume()

    def _read_losses(self) -> None:
        measured = self._meter.read()
        if not measured:
            return
        for m in measured:
            self.record.losses.append(m.loss)
            if m.step % self._limits.log_every == 0:
                row = {"step": m.step, "time": m.time, "epoch": m.epoch, "loss": m.loss}
                row["learning_rate"] = m.learning_rate
                self._log({**row, "samples_per_second": self._meter.samples_per_second})
        self._require_progress([m.loss for m in measured], measured[0].step)

    def _require_progress(self, losses: list[float], first: int) -> None:
        """Raise NonFiniteError if the run cannot come to anything any more."""
        scale = self.training_step.loss_scale
        if scale is None:
            wrong = [first + i for i, loss in enumerate(losses) if not math.isfinite(loss)]
            what = f"the loss of step {wrong[0]} is not finite" if wrong else ""
        else:  # a step whose gradients are not finite is left out, and that is no harm
            bad = int(scale.bad_steps.item())
            what = f"{bad} steps in a row had gradients that are not finite, up to step {self.step}"
            what = what if bad >= scale.max_bad_steps else ""
        if what:
            raise self._diverged(what)

    def _diverged(self, what: str) -> NonFiniteError:
        assert self._last is not None
        return divergence_error(what, self.training_step, self._dy, self._last[0], self.group)

    def _log(self, row: Row) -> None:
        for logger in self._monitoring.loggers:
            logger.write(row)

    def _total(self) -> int | None:
        if self._limits.steps is not None:
            return self._limits.steps
        length = self._feed.length()
        return None if length is None else length * (self._limits.epochs or 0)
