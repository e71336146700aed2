"""`TrainingStep`: forward, backward and update as one traced function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any

from meta import op
from meta.base.dtype import is_float, promote
from meta.base.errors import ArgumentError
from meta.model.gradient import WITHIN, gather_parameters, value_and_grad
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import tree
from meta.optim.data_parallel import DataParallel, gradient_norm
from meta.optim.loss_scale import LossScale
from meta.optim.optimizer import Optimizer, clip_factor, parameter_shard, require_clip, zeros_like
from meta.optim.options import bind, list_groups, parameters, require_range
from meta.runtime.ndarray import array, ndarray
from meta.runtime.placement import Placement, gather_shards


def _axpby(
    x: Mapping[str, Any], y: Mapping[str, Any], alpha: Any, beta: Any, skip: Any = None
) -> None:
    """Set ``y = alpha * x + beta * y`` by name, in one call for each dtype of y."""
    by_dtype: dict[str, list[str]] = {}
    for name in x:
        by_dtype.setdefault(y[name].dtype, []).append(name)
    for names in by_dtype.values():
        op.multi_tensor_axpby([x[n] for n in names], [y[n] for n in names], alpha, beta, skip)


class Accumulation(Model):
    """Sums of gradients, at least in float32, and how many calls are in them.

    Attributes
    ----------
    count_to: the number of calls for an update. factor: what makes the mean of the sums. count:
    float32[]. gradient: arrays by the parameter's name.
    """

    def build(
        self, params: Mapping[str, ndarray], count_to: int, placements: Mapping[str, Placement]
    ) -> None:
        """Make sums for parameters by name; placements: of their gradients."""
        device = next(iter(params.values())).device if params else "cpu"
        self.count_to, self.factor = count_to, 1.0 / count_to
        self.count = array(0.0, "float32", device=device)
        self.gradient = {
            name: zeros_like(x, promote(x.dtype, "float32"), placements[name])
            for name, x in params.items()
        }

    def add(self, gradients: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Add gradients; return the sums, and whether more calls are to come before an update."""
        sums = {name: self.gradient[name] for name in gradients}
        goes_on = op.astype(op.greater(self.count, 0.0), "float32")
        _axpby(gradients, sums, 1.0, goes_on)
        count = self.count + 1.0
        more = op.less(count, float(self.count_to))
        op.multi_tensor_axpby([count * op.astype(more, "float32")], [self.count], 1.0, 0.0)
        return sums, more


class ParameterAverage(Model):
    """``average = decay * average + (1 - decay) * parameter`` after every update; the first takes
    the parameters as they are, as torch.optim.swa_utils.AveragedModel.

    Attributes
    ----------
    decay: a number in [0, 1). count: float32[], the updates so far. parameter: the averages by the
    parameter's name, at least in float32; ``model.load_state_dict(average.parameter,
    strict=False)`` puts them into a model, and `TrainingStep.averaged` for a block.
    """

    def build(self, params: Mapping[str, ndarray], decay: float) -> None:
        """Start with copies of the parameters."""
        device = next(iter(params.values())).device if params else "cpu"
        self.decay = decay
        self.count = array(0.0, "float32", device=device)
        self.parameter = {n: array(a, promote(a.dtype, "float32")) for n, a in params.items()}
        for name, average in self.parameter.items():
            average.placement = params[name].placement

    def add(self, params: Mapping[str, Any], skip: Any) -> None:
        """Take parameters into the average, unless ``skip`` is true."""
        stays = op.astype(op.greater(self.count, 0.0), "float32") * self.decay
        _axpby(params, self.parameter, 1.0 - stays, stays, skip)
        op.multi_tensor_axpby([op.ones_like(self.count)], [self.count], 1.0, 1.0, skip)

    @contextmanager
    def within(self, params: Mapping[str, ndarray]) -> Iterator[None]:
        """Put the averages into the parameters for a block; then these are what they were. Where
        ranks have parts of the averages, all of them enter the block.
        """
        before = {n: ndarray(params[n].tensor.clone()) for n in self.parameter}
        try:
            for name, average in self.parameter.items():
                param = params[name]
                param.update(gather_shards(average.tensor, average.placement, param.placement))
            yield
        finally:
            for name, value in before.items():
                params[name].update(value)


def _trainable_parameters(model: Model) -> dict[str, ndarray]:
    """Return the parameters that require a gradient by name."""
    return {n: a for n, a in model.named_parameters() if a.requires_grad}


StepMaker = Callable[[Model], "TrainingStep"]
STAGES = 3
"""The last stage of ``zero``."""


def require_stage(over: str | None, zero: int, stages: int = STAGES) -> None:
    """Raise ArgumentError for a stage of ZeRO that there is not, or without an axis of ranks."""
    if type(zero) is not int or not 0 <= zero <= stages or (zero and over is None):
        expected = f'a stage from 0 to {stages}, beside over="dp"'
        raise ArgumentError("zero does not fit", expected=expected, found=zero)


class TrainingStep(Model):
    """A model together with its optimizer, called as ``step(dy, *inputs)``, where inputs may be
    given by name; see `training_step`.

    Attributes
    ----------
    model: the model that is trained. optimizer: the `Optimizer`. lr: its array, an
    input of the program: ``step.lr.update(0.01)`` traces and compiles nothing anew.
    loss_scale, accumulation, average, ranks: what was asked for, or None.

    >>> step = meta.optim.with_sgd(lr=0.5)(meta.model.Linear(2, 1, bias=False))
    >>> step.model.weight.update(meta.zeros((1, 2)))
    >>> step(meta.ones((1, 1)), meta.array([[1.0, 2.0]])).tolist()  # the result before the update
    [[0.0]]
    >>> step.model.weight.tolist(), step.lr.item()
    ([[-0.5, -1.0]], 0.5)
    """

    records = False

    def build(
        self,
        model: Model,
        make_optimizer: Callable[..., Optimizer],
        clip_norm: float | None,
        clip_value: float | None,
        loss_scale: LossScale | None,
        accumulate: int,
        ema: float | None,
        ranks: DataParallel | None = None,
    ) -> None:
        """Wrap a model whose forward is traced."""
        self.ranks = ranks
        params = _trainable_parameters(model)
        places = {n: a.placement for n, a in params.items()}
        self._gradient_placements = places
        if ranks is not None:
            places = {n: ranks.placement(a) for n, a in params.items()}
            of_gradients = {n: ranks.gradient_placement(a) for n, a in params.items()}
            self._gradient_placements = of_gradients
        self.model = model
        self.gradient = value_and_grad(model)
        optimizer = make_optimizer(params, placements=places)
        self.lr: Any = optimizer.lr
        self.optimizer = optimizer
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.loss_scale = None
        if loss_scale is not None:
            self.loss_scale = loss_scale.copy_on(self.lr.device)
        self.accumulation = None
        if accumulate > 1:
            self.accumulation = Accumulation(params, accumulate, self._gradient_placements)
        self.average = None
        if ema is not None:
            parts = {n: parameter_shard(a, places[n]) for n, a in params.items()}
            self.average = ParameterAverage(self._weights(parts), ema)

    def __setattr__(self, name: str, value: Any) -> None:
        # A number goes into the array that programs read.
        if name == "lr" and not isinstance(value, ndarray):
            self.lr.update(value)
        else:
            super().__setattr__(name, value)

    def call_signature(self) -> inspect.Signature:
        """Return what a call of the model takes, behind ``dy``."""
        return self.gradient.call_signature()

    @trace
    def forward(self, dy: Any, *inputs: Any, **named: Any) -> Any:
        """Run forward, backward and update; return the model's result."""
        scale = self.loss_scale
        if scale is not None:
            leaves, structure = tree.flatten(dy)
            dy = tree.unflatten(structure, [scale.scaled(leaf) for leaf in leaves])
        # A parameter that the result does not depend on stays as it is.
        y, gradients = self.gradient.of_used(dy, *inputs, **named)
        if self.ranks is not None:
            y, gradients = self._result(y), self.ranks.means(gradients)
        factor: Any = 1.0
        skip = None
        if self.accumulation is not None:
            gradients, skip = self.accumulation.add(gradients)
            factor = self.accumulation.factor
        if scale is not None:
            factor = factor / scale.scale
        if scale is not None or self.clip_norm is not None:
            norm = gradient_norm(gradients, self._gradient_placements)
            if self.clip_norm is not None:
                factor = clip_factor(norm * factor, self.clip_norm) * factor
            if scale is not None:
                skip = scale.follow(op.isfinite(norm), skip)
        params: dict[str, Any] = _trainable_parameters(self.model)
        if self.ranks is None or self.ranks.zero in (0, 3):
            self._update(params, gradients, factor, skip)
            return y
        parts = self.ranks.parts(params, params)
        if self.ranks.zero == 1:
            gradients = self.ranks.parts(gradients, params)
        self._update(parts, gradients, factor, skip)
        self.ranks.put({n: parts[n] for n in gradients}, params)
        return y

    def _result(self, y: Any) -> Any:
        """Return what the step returns on this rank, of the model's result."""
        return y

    def _update(self, params: dict[str, Any], gradients: Any, factor: Any, skip: Any) -> None:
        """Update parameters, or this rank's parts of them, and their averages."""
        self.optimizer.update(params, gradients, factor, self.clip_value, skip)
        if self.average is not None:
            self.average.add(self._weights(params), skip)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averages (``ema=``) in place of the model's parameters for a block, to evaluate
        or to save them; then the parameters are, bit for bit, what they were before.

        ArgumentError for a step that keeps no average.
        """
        if self.average is None:
            raise ArgumentError("this step keeps no average", hint="make it with ema=0.999")
        with self.average.within(self.model.state()):
            yield

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Let the model have whole parameters for a block, to call it, or to save or load them:
        where ranks have parts of them (``zero=3``) they are gathered, and all ranks enter the
        block. What is written to them in it stays. Steps are made outside of the block.
        """
        self._refused = WITHIN
        try:
            with gather_parameters(self.model):
                yield
        finally:
            self._refused = None

    def _weights(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters, of half precision ones the masters."""
        return {n: self.optimizer.master.get(n, a) for n, a in params.items()}


def training_step(
    kind: type[Optimizer],
    lr: float,
    numbers: Mapping[str, Any],
    *,
    groups: Iterable[Mapping[str, Any]] = (),
    master_weights: bool = True,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    loss_scale: LossScale | None = None,
    accumulate: int = 1,
    ema: float | None = None,
    maximize: bool = False,
    over: str | None = None,
    zero: int = 0,
    reduce_dtype: str | None = None,
    gather_limit: int | None = None,
) -> StepMaker:
    """Return a function that turns a model into its training step. It takes ``over``, too.

    The step is called as ``step(dy, *inputs)``: forward, backward from ``dy`` (the gradient of the
    model's result), and the update of all parameters that require a gradient are one traced
    function; it returns the model's result. All that a run needs to go on is in ``step.state()``.

    Parameters
    ----------
    kind, lr, numbers: the optimizer and its options.
    groups, master_weights, maximize: see `Optimizer`; "params" of a group are patterns of the
        model's parameter names.
    clip_norm: if the norm of all gradients together is larger, they are scaled down to it.
    clip_value: gradients are clamped to [-clip_value, clip_value]; not together with clip_norm.
    loss_scale: a `StaticLossScale` or `DynamicLossScale`: ``dy`` is multiplied by the scale, the
        gradients are divided by it, and an update from gradients that are not finite is left out.
        ``step.loss_scale.check()`` raises after too many of them, as `meta.train.fit` does.
    accumulate: the number of calls whose gradients are averaged for one update.
    ema: the decay of a running average of the parameters, ``step.average``; None: there is none.
        ``with step.averaged():`` the model computes with it.
    over: data parallel training along this axis of the mesh (`meta.distributed`): each rank has
        its own part of the batch, and the gradients are averaged over the ranks, before everything
        else that is done to them. A model's arrays start as those of rank 0. Statistics of batch
        normalisation, and what the step returns, are each rank's own.
    zero: what ranks along ``over`` share, instead of having it each (ZeRO, Rajbhandari et al.,
        arXiv:1910.02054). 1: the state of the optimizer, float32 masters and averages of parameters
        included, of which each rank has its part, updates it, and gathers the parameters. 2: also
        the gradients, and their sums where they are accumulated. 3: also the parameters, frozen
        ones too: forward and backward pass gather a parameter before they use it
        (`gather_parameters`), and the model is called ``with step.gathered():`` only. Numbers are
        those of 0, but for the order of sums. What LAMB, LANS, Adafactor and Muon need of a whole
        parameter is exchanged besides, see docs/distributed.md.
    reduce_dtype: the dtype in which gradients are averaged; None: their own.
    gather_limit: of ``zero=3``, the bytes of parameters that are gathered at a time, at least what
        the operator that needs most needs; None: what four operators in a row need.

    Raises ArgumentError for options that do not fit; when a model is given, DistributedError if the
    mesh has no such axis, and ArgumentError for Adafactor or Muon of matrices of which
    `meta.distributed.tensor_parallel` leaves a rank a part.

    >>> step = meta.optim.with_sgd(lr=0.1, momentum=0.9, clip_norm=1.0)(meta.model.Linear(3, 1))
    >>> step(meta.ones((4, 1)), meta.ones((4, 3))).shape
    (4, 1)
    """
    kind.validate(lr, {**numbers, "maximize": maximize})
    require_clip(clip_norm, clip_value)
    if loss_scale is not None and not isinstance(loss_scale, LossScale):
        raise ArgumentError(
            "this is no loss scale",
            expected="meta.optim.StaticLossScale(1024) or meta.optim.DynamicLossScale()",
            found=repr(loss_scale),
        )
    if type(accumulate) is not int or accumulate < 1:
        raise ArgumentError("accumulate counts calls", expected="an int >= 1", found=accumulate)
    if ema is not None:
        require_range("a step", "ema", ema, isinstance(ema, Real) and 0 <= ema < 1, "in [0, 1)")
    if reduce_dtype is not None and (over is None or not is_float(reduce_dtype)):
        expected = 'a floating point dtype, beside over="dp"'
        raise ArgumentError("reduce_dtype does not fit", expected=expected, found=reduce_dtype)
    require_stage(over, zero)
    if gather_limit is not None and (
        zero != 3 or type(gather_limit) is not int or gather_limit < 0
    ):
        expected = "a number of bytes, beside zero=3"
        raise ArgumentError("gather_limit does not fit", expected=expected, found=gather_limit)
    of_params = partial(
        kind,
        lr=lr,
        groups=list_groups(groups),
        master_weights=master_weights,
        maximize=maximize,
        **numbers,
    )

    def make(model: Model, over: str | None = over) -> TrainingStep:
        ranks = None if over is None else DataParallel.of(over, reduce_dtype, zero)
        if ranks is not None:
            ranks.start(model)
        options = clip_norm, clip_value, loss_scale, accumulate, ema, ranks
        step = TrainingStep(model, of_params, *options)
        step.gradient.gather_limit = gather_limit
        return step

    return make


def step_maker(kind: type[Optimizer]) -> Callable[..., StepMaker]:
    """Return the function ``with_<name>`` of an algorithm: it takes the options of its `defaults`,
    and by name those of `training_step`.
    """
    name = f"with_{kind.__name__.lower()}"
    options = inspect.signature(training_step).parameters.values()
    further = [p for p in options if p.kind is p.KEYWORD_ONLY]
    signature = inspect.Signature([*parameters(kind.defaults), *further])

    def with_algorithm(*args: Any, **kwargs: Any) -> StepMaker:
        given = bind(name, signature, args, kwargs)
        numbers = {n: given.pop(n) for n in kind.defaults}
        return training_step(kind, numbers.pop("lr"), numbers, **given)

    with_algorithm.__name__ = with_algorithm.__qualname__ = name
    with_algorithm.__module__ = kind.__module__
    with_algorithm.__signature__ = signature  # type: ignore[attr-defined]
    with_algorithm.__doc__ = _DOC.format(algorithm=kind.__name__, name=name)
    return with_algorithm


_DOC = """Return a function that turns a model into its training step with {algorithm}.

``step = {name}(...)(model)`` is called as ``step(dy, *inputs)``. See `{algorithm}` for the numbers
and `meta.optim.training_step` for the step and the other options.

>>> step = meta.optim.{name}(lr=0.1)(meta.model.Linear(3, 1))
>>> before = step(meta.ones((4, 1)), meta.ones((4, 3)))  # forward, backward, update
>>> meta.all(step.model(meta.ones((4, 3))) < before).item()
True
"""
