"""`training_step`: a PyTorch module, its optimizer and a loss become one program.

The module is exported (`torch.export`), its program differentiated, and the update of the optimizer
put behind it: one `meta.optim.TrainingStep`, whose parameters, buffers and optimizer state are the
tensors of PyTorch's, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import meta.amp
from meta import op
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError
from meta.frontend.torch.model import TorchModel, model_on_tensors
from meta.interop.torch.guards import Guards, register, require_last
from meta.interop.torch.optimizers import options_of
from meta.interop.torch.step_state import StepState, array_on, own_order
from meta.optim import TrainingStep
from meta.optim.data_parallel import DataParallel
from meta.optim.optimizer import Optimizer, require_clip
from meta.optim.step import require_stage
from meta.runtime.mesh import current_mesh, digest, require_consistent
from meta.runtime.ndarray import ndarray
from meta.vm import Executable, compile

Loss = Callable[..., Tensor]
LAST_STAGE = 2
"""Of ``zero``: parameters are PyTorch's tensors, of which no rank has a part."""
HALVES = (torch.bfloat16, torch.float16)


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss | None = None,
    *,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    cuda_graph: bool | None = None,
    over: str | None = None,
    zero: int = 0,
) -> TorchTrainingStep:
    """Return a function that makes one step of training: forward, backward, and the update.

        step = meta.interop.torch.training_step(model, optimizer, nn.functional.cross_entropy)
        for x, y in loader:
            loss = step(x, y)
            scheduler.step()

    Parameters
    ----------
    model: a module that `torch.export` takes, in train mode; parts of it may be in eval mode, and
        parameters frozen. Its parameters and buffers are written in place.
    optimizer: SGD, Adam, AdamW, RMSprop, Adagrad, Adafactor or Muon of `torch.optim`, with groups
        as they are. Its state is made at once, and written in place. The learning rates of its
        groups are read at each call.
    loss: a function of torch's of the result and the targets, ``loss(model(x), *targets)``, whose
        result has one element; the step is called as ``step(x, *targets)``, where a tuple ``x`` is
        arguments of the model, and a dict those by name. None: the model returns the loss, or an
        object or dict that has it as ``loss``; the step is called as the model is.
    autocast: torch.bfloat16 or torch.float16: the dtype of mixed precision, by the cast rules of
        `meta.amp`; None: what is computed has the dtype of its operands.
    scaler: scales the loss, and leaves out updates whose gradients are not finite. What it would do
        in ``scale``, ``unscale_``, ``step`` and ``update`` is a part of the step.
    clip_norm, clip_value: as `torch.nn.utils.clip_grad_norm_` and ``clip_grad_value_``.
    accumulate: the number of calls whose gradients are averaged for one update.
    cuda_graph: as for `meta.vm.compile`.
    over: data parallel training along this axis of the mesh (`meta.distributed`), as
        `meta.optim.training_step` makes it: each rank calls the step with its part of a batch, all
        with the same shapes. Parameters and buffers are written once, with those of rank 0.
        Gradients and the loss are means over the ranks; buffers are each rank's own from then on.
    zero: 1: ranks share the state of the optimizer, 2: and the sums of ``accumulate``. A state is
        then this rank's part of it, in one axis, and whole in a block ``with step.gathered():``.

    The step returns the loss, shape (), detached; ``.grad`` of parameters stays as it is, and the
    caller neither zeroes gradients nor steps the optimizer. It is compiled at the first call, and
    again for inputs of other shapes or dtypes, after parameters were frozen or thawed, and after
    options of a group other than ``lr`` have changed. Dropout draws from `meta.random`.

    Raises ArgumentError for an optimizer, an option, a scaler or a loss that it does not take, at
    the first call AtenError for a module that is not exported or converted, naming the lines:
    before anything is changed. DistributedError on all ranks if they do not agree.

    >>> import torch, meta.interop.torch
    >>> net = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> step = meta.interop.torch.training_step(net, optimizer, torch.nn.functional.mse_loss)
    >>> losses = [step(torch.ones(4, 3), torch.zeros(4, 1)).item() for _ in range(2)]
    >>> losses[1] < losses[0]
    True
    """
    clip, ranks = (clip_norm, clip_value), (over, zero)
    return TorchTrainingStep(
        model, optimizer, loss, autocast, scaler, clip, accumulate, cuda_graph, ranks
    )


class _Objective(nn.Module):
    """A module and its loss as one module, called as the step is."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.loss is None:
            found = self.model(*args, **kwargs)
            found = found["loss"] if isinstance(found, Mapping) else getattr(found, "loss", found)
        else:
            inputs, *targets = args
            if isinstance(inputs, Mapping):
                result = self.model(**inputs)
            else:
                result = self.model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
            found = self.loss(result, *targets, **kwargs)
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
            what = f"{found.dtype}{list(found.shape)}" if isinstance(found, Tensor) else type(found)
            raise ArgumentError(
                "the loss is no number",
                expected="a floating point tensor with one element",
                found=str(what),
                hint="loss(result, *targets) returns it; without a loss, the model does",
            )
        return found.reshape(())


class _Step(TrainingStep):
    """A step that counts as torch's optimizer does, too, and returns the loss of all ranks."""

    counts: ndarray | None = None
    updated: frozenset[str] = frozenset()

    def _result(self, y: Any) -> Any:
        assert self.ranks is not None
        return op.all_reduce(y, self.ranks.over, self.ranks.size, "mean")

    def _update(self, params: dict[str, Any], gradients: Any, factor: Any, skip: Any) -> None:
        self.updated = frozenset(gradients)
        super()._update(params, gradients, factor, skip)
        if self.counts is not None:
            ones = op.ones_like(self.counts)
            op.multi_tensor_axpby((ones,), (self.counts,), 1.0, 1.0, skip)


class TorchTrainingStep:
    """What `training_step` returns.

    Attributes
    ----------
    executables: what was compiled, by what it was compiled for.

    >>> import torch, meta.interop.torch
    >>> net = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> step = meta.interop.torch.training_step(net, optimizer, torch.nn.functional.mse_loss)
    >>> losses = [step(torch.ones(4, 3), torch.zeros(4, 1)).item() for _ in range(3)]
    >>> losses[2] < losses[1] < losses[0], len(step.executables)
    (True, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss | None,
        autocast: torch.dtype | None,
        scaler: torch.amp.GradScaler | None,
        clip: tuple[float | None, float | None],
        accumulate: int,
        cuda_graph: bool | None,
        ranks: tuple[str | None, int],
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, Optimizer):
            raise ArgumentError(
                "training_step takes an optimizer of PyTorch's",
                expected="torch.optim.SGD, Adam, AdamW, ...",
                found=f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
                hint="models of meta have steps of their own: meta.optim.with_adamw(...)(model)",
            )
        self._objective, self._optimizer = _Objective(model, loss), optimizer
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        if autocast is not None and autocast not in HALVES:
            raise ArgumentError(
                "this is no dtype of mixed precision",
                expected="torch.bfloat16 or torch.float16",
                found=str(autocast),
            )
        self._precision = None if autocast is None else FROM_TORCH[autocast]
        require_clip(*clip)
        if type(accumulate) is not int or accumulate < 1:
            raise ArgumentError("accumulate counts calls", expected="an int >= 1", found=accumulate)
        over, zero = ranks
        require_stage(over, zero, LAST_STAGE)
        self._ranks = None if over is None else DataParallel.of(over, None, zero)
        self._clip, self._accumulate = clip, accumulate
        self._cuda_graph = cuda_graph
        self._calls = 0
        self._digests: dict[Any, bytes] = {}
        self._guards = Guards(self._objective, optimizer)
        self.executables: dict[Any, Executable] = {}
        self._seeds: dict[Any, ndarray] = {}
        self._state = self._new_state(self._setting(self._guards))
        if self._ranks is not None:
            options = self._precision, clip, accumulate, zero
            self._require_same("how they train", (*options, *_settings(optimizer, self._scaler)))
            self._ranks.broadcast(self._state.arrays.values())
        self._recount = False
        register(optimizer, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Make a step; return the loss, shape ()."""
        require_last(self._optimizer, self)
        self._state.shared.refuse_gathered()
        guards = self._guards
        if not guards.hold():
            guards = Guards(self._objective, self._optimizer)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        setting, stepped = self._setting(guards), self._recount
        key = structure, *map(_kind, leaves), setting
        executable = self.executables.get(key)
        if self._recount:
            self._state.recount(setting)
            self._recount = False
        changed = guards is not self._guards or not self._state.is_current()
        compiles = executable is None or changed
        known = f"compiled anew: {compiles}", f"behind a step of PyTorch's: {stepped}"
        self._require_same("the inputs of a step, and what it trains", (*key, *known))
        if executable is None or changed:
            executable = self._compiled(key, setting, guards, args, kwargs)
        state = self._state
        state.shared.set_rates(self._optimizer)
        given, named = pytree.tree_map_only(Tensor, array_on, (args, kwargs))
        loss = executable(self._seeds[key], *given, **named)
        self._calls += 1
        if self._calls % self._accumulate == 0:
            state.shared.count_on_host()
        found: Tensor = loss.tensor
        return found

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Let the optimizer have its whole state for a block, of which ranks have parts (``zero``),
        for `state_dict` or a step of PyTorch's. All ranks enter it; what is written in it stays.
        """
        with self._state.shared.gathered():
            yield

    def before_step_of_torch(self) -> None:
        """Raise ArgumentError if PyTorch's own step cannot be made."""
        self._state.shared.refuse_shards()

    def after_step_of_torch(self) -> None:
        """Count the step that PyTorch has made."""
        self._recount = True

    def _require_same(self, what: str, lines: tuple[Any, ...]) -> None:
        """Raise DistributedError on all ranks if they have different lines."""
        if self._ranks is None:
            return

        def text() -> str:
            return "\n".join(map(str, lines))

        if lines not in self._digests:
            self._digests[lines] = digest(text())
        own = self._digests[lines]
        require_consistent(current_mesh(), what, own, text, [self._ranks.over])

    def _setting(self, guards: Guards) -> Any:
        """Return what a program depends on besides its inputs and what guards look at."""
        return *guards.modes(), str(options_of(self._optimizer))

    def _new_state(self, setting: Any) -> StepState:
        arguments = self._objective, self._optimizer, self._scaler, self._accumulate
        return StepState.of(*arguments, setting, self._ranks)

    def _compiled(
        self, key: Any, setting: Any, guards: Guards, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Executable:
        """Compile the step for arguments; nothing of PyTorch's is changed before that is done."""
        if not self._objective.model.training:
            raise ArgumentError("the model is in eval mode", hint="model.train()")
        state = self._state
        if guards is not self._guards or not state.is_current() or state.setting != setting:
            if self._calls % self._accumulate:
                raise ArgumentError(
                    "the model or its optimizer was changed while gradients are accumulated",
                    expected=f"{self._accumulate} calls for each update",
                    found=f"a change after {self._calls % self._accumulate}",
                )
            state = self._new_state(setting)
            self.executables.clear()
        leaves = enumerate(pytree.tree_leaves((args, kwargs)))
        orders = dict(state.orders)
        for i, leaf in leaves:
            if isinstance(leaf, Tensor) and (order := own_order(leaf)):
                orders[i] = order
        with guards.recording():
            model = model_on_tensors(self._objective, args, kwargs, state.arrays, orders)
        step = _Step(
            model,
            lambda *_, **__: state.shared.optimizer,
            *self._clip,
            state.loss_scale,
            1,
            None,
            self._ranks,
        )
        step.accumulation = state.accumulation
        step.counts = None if state.shared.on_host else state.shared.steps
        run = step if self._precision is None else meta.amp.autocast(step, self._precision)
        given, named = pytree.tree_map_only(Tensor, array_on, (args, kwargs))
        seed = state.seed(_loss_dtype(model))
        executable = compile(run, seed, *given, cuda_graph=self._cuda_graph, **named)
        state.commit(step.updated)
        guards.watch(model.torch_program().constants.values())
        self._guards, self._state = guards, state
        self.executables[key], self._seeds[key] = executable, seed
        return executable


def _settings(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
) -> Iterable[str]:
    """Return, a line each, what ranks have to have in common besides arrays and inputs."""
    known = optimizer.state_dict()
    yield from map(str, known["param_groups"])
    for number, state in known["state"].items():
        yield f"state of parameter {number}: {sorted(state)}, step {float(state.get('step', 0))}"
    yield f"scaler: {scaler and scaler.state_dict()}"


def _loss_dtype(model: TorchModel) -> str:
    program = model.torch_program()
    values: Any = program.module.graph.output_node().args[0]
    outputs = zip(values, program.outputs, strict=True)
    (loss,) = (value for value, output in outputs if output.written is None)
    return FROM_TORCH[loss.meta["val"].dtype]


def _kind(leaf: Any) -> Any:
    """Return what a program is compiled for of a leaf of the arguments."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    if not isinstance(leaf, bool | int | float | str | None):
        raise ArgumentError(
            "the step takes tensors, numbers and strings, in tuples, lists and dicts",
            found=type(leaf).__name__,
            hint="torch.as_tensor(x)",
        )
    return type(leaf), leaf  # True is 1, and another program
