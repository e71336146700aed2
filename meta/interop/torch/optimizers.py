"""Optimizers of `torch.optim` as ours: the same options, and the same tensors as state.

`ALGORITHMS` has a row for each class: the algorithm of ours, its options under our names, and the
names of what both keep of a parameter; `register_optimizer` adds one. The state is made as torch
makes it at its first step, so that `state_dict`, and torch's own `step`, go on with what a training
step of ours left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer as TorchOptimizer

from meta import optim
from meta.base.errors import ArgumentError, RegistrationError
from meta.frontend.core.memory_order import Order, inverse
from meta.optim import Optimizer
from meta.runtime.ndarray import array, ndarray
from meta.runtime.placement import Placement, gather_shards, shard_of

Options = Mapping[str, Any]
IGNORED = frozenset(["params", "param_names", "lr", "initial_lr", "foreach", "fused", "capturable"])
"""What a group has besides the numbers of a step. ``initial_lr`` is of schedulers."""


@dataclass(frozen=True)
class Algorithm:
    """How an optimizer of torch's is one of ours.

    Attributes
    ----------
    kind: the class of ours, by a group's options. options: those of ours, of torch's. state: by the
    key of torch's state what ours calls it. required: options that have to have a value, since
    ours has no other. init: what the state is at first, of an option; zeros where there is none.
    has_step: whether torch counts the steps of each parameter, in tensors float32[] as ``step``.

    >>> row = meta.interop.torch.Algorithm(
    ...     kind=lambda group: meta.optim.Lion,
    ...     options=lambda group: {"betas": group["betas"]},
    ...     state={"exp_avg": "m"},
    ... )
    >>> row.kind({}).__name__, row.options({"betas": (0.9, 0.99), "lr": 0.1})
    ('Lion', {'betas': (0.9, 0.99)})
    """

    kind: Callable[[Options], type[Optimizer]]
    options: Callable[[Options], dict[str, Any]]
    state: Mapping[str, str]
    required: Mapping[str, Any] = field(default_factory=dict)
    init: Mapping[str, str] = field(default_factory=dict)
    has_step: bool = True


def _same(*names: str) -> Callable[[Options], dict[str, Any]]:
    return lambda group: {name: group[name] for name in names}


def _adafactor(group: Options) -> dict[str, Any]:
    eps1, eps2 = group["eps"]
    if eps1 is None:
        eps1 = torch.finfo(group["params"][0].dtype).eps
    own = {"beta2_decay": -group["beta2_decay"], "eps1": eps1, "eps2": eps2}
    return own | _same("d", "weight_decay")(group)


def _muon(group: Options) -> dict[str, Any]:
    match = group["adjust_lr_fn"] == "match_rms_adamw"
    own = _same("weight_decay", "momentum", "nesterov", "eps", "ns_steps")(group)
    return {**own, "match_rms_adamw": match, "orthogonal": True}


_MOMENTS = {"exp_avg": "m", "exp_avg_sq": "v"}
_ADAM = _same("betas", "eps", "weight_decay")
_NO_AMSGRAD = {"amsgrad": False, "differentiable": False}
ALGORITHMS: dict[type[TorchOptimizer], Algorithm] = {
    torch.optim.SGD: Algorithm(
        lambda _: optim.SGD,
        _same("momentum", "weight_decay", "nesterov"),
        {"momentum_buffer": "velocity"},
        {"dampening": 0, "differentiable": False},
        has_step=False,
    ),
    torch.optim.Adam: Algorithm(
        lambda group: optim.AdamW if group.get("decoupled_weight_decay") else optim.Adam,
        _ADAM,
        _MOMENTS,
        _NO_AMSGRAD,
    ),
    torch.optim.AdamW: Algorithm(
        lambda _: optim.AdamW,
        _ADAM,
        _MOMENTS,
        {**_NO_AMSGRAD, "decoupled_weight_decay": True},
    ),
    torch.optim.RMSprop: Algorithm(
        lambda _: optim.RMSprop,
        _same("alpha", "eps", "weight_decay", "momentum", "centered"),
        {"square_avg": "v", "momentum_buffer": "velocity", "grad_avg": "m"},
        {"differentiable": False},
    ),
    torch.optim.Adagrad: Algorithm(
        lambda _: optim.Adagrad,
        _same("lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
        {"sum": "v"},
        {"differentiable": False},
        {"sum": "initial_accumulator_value"},
    ),
    torch.optim.Adafactor: Algorithm(
        lambda _: optim.Adafactor,
        _adafactor,
        {"row_var": "rows", "col_var": "columns", "variance": "v"},
    ),
    torch.optim.Muon: Algorithm(
        lambda _: optim.Muon,
        _muon,
        {"momentum_buffer": "velocity"},
        {"ns_coefficients": (3.4445, -4.7750, 2.0315)},
        has_step=False,
    ),
}
"""How optimizers are ours, by their classes."""


def register_optimizer(theirs: type[TorchOptimizer], algorithm: Algorithm) -> None:
    """State how optimizers of a class, not of its subclasses, are one of ours.

    RegistrationError for a class that has an algorithm already.

    docs/howto/training_step.md registers an optimizer of one's own.

    >>> import torch, meta.interop.torch
    >>> row = meta.interop.torch.Algorithm(lambda _: meta.optim.SGD, lambda _: {}, {})
    >>> try:
    ...     meta.interop.torch.register_optimizer(torch.optim.SGD, row)
    ... except meta.errors.RegistrationError as error:
    ...     print(error.what)
    SGD has an algorithm already
    """
    if ALGORITHMS.setdefault(theirs, algorithm) is not algorithm:
        raise RegistrationError(f"{theirs.__qualname__} has an algorithm already")


def algorithm_of(optimizer: TorchOptimizer) -> Algorithm:
    """Return how an optimizer is one of ours; ArgumentError for a class or an option that is not.

    A subclass is another optimizer: it may have a step of its own.
    """
    found = ALGORITHMS.get(type(optimizer))
    if found is None:
        raise ArgumentError(
            f"no optimizer of ours makes the steps of {type(optimizer).__name__}",
            expected=", ".join(c.__name__ for c in ALGORITHMS),
            hint="meta.interop.torch.register_optimizer says which does; or compile the model with "
            "torch.compile(model, backend='meta'), and step as before",
        )
    for number, group in enumerate(optimizer.param_groups):
        for name, wanted in found.required.items():
            if group.get(name, wanted) != wanted:
                raise ArgumentError(
                    f"{type(optimizer).__name__}: {name} of parameter group {number} is not "
                    "supported",
                    expected=repr(wanted),
                    found=repr(group[name]),
                )
        reads = _Reads(group)
        found.kind(reads), found.options(reads)
        known = reads.names | found.required.keys() | IGNORED | {"maximize"}
        # Loading a state adds defaults of which no group has a value.
        if left := sorted(optimizer.defaults.keys() & group.keys() - known):
            raise ArgumentError(
                f"{type(optimizer).__name__}: nothing says what its option {left[0]} does",
                found=repr(group[left[0]]),
                hint="the algorithm that is registered reads it, or requires a value",
            )
    return found


class _Reads(dict[str, Any]):
    """A group that remembers which of its options were read."""

    def __init__(self, group: Options) -> None:
        super().__init__(group)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option, or the default."""
        self.names.add(name)
        return super().get(name, default)


def options_of(optimizer: TorchOptimizer) -> list[dict[str, Any]]:
    """Return what a program is compiled for: the options of each group but its learning rate."""
    return [
        {n: v for n, v in group.items() if n not in IGNORED} for group in optimizer.param_groups
    ]


class SharedState:
    """The state of an optimizer of torch's, made if it is not there, and ours on the same tensors.

    Attributes
    ----------
    optimizer: ours. rates: float32[], the learning rate of each group. steps: float32[n], the
    counts of which torch's state has the elements; None where torch counts none. on_host: whether
    the counts are on the host, though the parameters are not.
    """

    def __init__(
        self,
        theirs: TorchOptimizer,
        names: Mapping[int, str],
        arrays: Mapping[str, ndarray],
        orders: Mapping[str | int, Order],
        placements: Mapping[str, Placement],
    ) -> None:
        """Take an optimizer; by the id of a parameter its name, by name its array, the order of
        axes that this has, where they are not in their own, and which part this rank updates.
        """
        algorithm = algorithm_of(theirs)
        groups = [_trained(group["params"]) for group in theirs.param_groups]
        self._theirs, self._state = theirs, theirs.state
        first = theirs.param_groups[0]
        kinds = {algorithm.kind(group) for group in theirs.param_groups}
        if len(kinds) > 1:
            raise ArgumentError(
                "all groups have to have the same algorithm",
                found=" and ".join(sorted(k.__name__ for k in kinds)),
            )
        maximize = {bool(group.get("maximize")) for group in theirs.param_groups}
        self.optimizer: Optimizer = kinds.pop()(
            {names[id(p)]: arrays[names[id(p)]] for group in groups for p in group},
            1.0,
            groups=[
                {"params": [names[id(p)] for p in of_group], **algorithm.options(group)}
                for group, of_group in zip(theirs.param_groups, groups, strict=True)
                if of_group
            ],
            master_weights=False,
            placements=placements,
            maximize=maximize == {True},
            **algorithm.options(first),
        )
        if len(maximize) > 1:
            for own, group in zip(self.optimizer.groups, theirs.param_groups, strict=True):
                own["maximize"] = bool(group["maximize"])
        device = next(p for group in groups for p in group).device
        self.rates = [array(0.0, "float32", device=str(device)) for _ in theirs.param_groups]
        with_parameters = [r for r, of_group in zip(self.rates, groups, strict=True) if of_group]
        for own, rate in zip(self.optimizer.groups, with_parameters, strict=True):
            own["rate"] = rate
        self._known_rates: dict[int, float] = {}
        self.set_rates(theirs)
        parameters = [p for group in groups for p in group]
        # What torch's state is to have of each parameter: nothing is changed before `commit`.
        self._states = {names[id(p)]: (p, dict(theirs.state.get(p, {}))) for p in parameters}
        self._shards: list[tuple[nn.Parameter, str, ndarray, Order | None]] = []
        self._gathered = False
        self._share(theirs, algorithm, names, orders)
        self.steps: ndarray | None = None
        self._uncounted: set[str] = set()
        self._committed: list[nn.Parameter] = []
        self.on_host = False
        if algorithm.has_step:
            self._share_steps(theirs)

    def set_rates(self, theirs: TorchOptimizer) -> None:
        """Take the learning rates that the groups have now."""
        for number, group in enumerate(theirs.param_groups):
            rate = group["lr"]
            if isinstance(rate, Tensor):
                self.rates[number].tensor.copy_(rate)
            elif rate != self._known_rates.get(number):
                self.rates[number].tensor.fill_(rate)
                self._known_rates[number] = rate

    def is_current(self) -> bool:
        """Whether the optimizer still has the state that is shared: loading one replaces it."""
        return self._theirs.state is self._state

    def commit(self, names: Collection[str]) -> None:
        """Give torch's optimizer the state of parameters by name.

        ArgumentError for one that has made fewer steps than others, since it had no gradient.
        """
        late = sorted(self._uncounted.intersection(names))
        if late and self.steps is not None and self.optimizer.step_count.item():
            raise ArgumentError(
                f"{late[0].removeprefix('model.')} has made no step yet, and others have",
                expected="parameters that have made the same number of steps",
                found=f"{self.optimizer.step_count.item():g} steps of others",
                hint="give parameters that are thawed an optimizer and a step of their own",
            )
        for name, (p, state) in self._states.items():
            if name in names and state:
                self._theirs.state[p].update(state)
                self._committed.append(p)
        # Schedulers warn of an optimizer that has made no step.
        vars(self._theirs)["_opt_called"] = True

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Let the state be whole for a block, of which this rank has parts."""
        self.refuse_gathered()
        within = []
        for p, key, part, order in self._shards:
            state = self._state.get(p, {})
            if key in state:
                place = part.placement
                whole = gather_shards(part.tensor, place, Placement(place.shape))
                state[key] = whole if order is None else whole.permute(inverse(order))
                within.append((state, key, part, order))
        self._gathered = True
        try:
            yield
        finally:
            self._gathered = False
            for state, key, part, order in within:
                tensor = state[key] if order is None else state[key].permute(order)
                place = part.placement
                part.update(shard_of(tensor.contiguous(), Placement(place.shape), place))
                state[key] = part.tensor

    def refuse_gathered(self) -> None:
        """Raise ArgumentError within a block of `gathered`."""
        if self._gathered:
            raise ArgumentError("steps are made outside of a block with step.gathered()")

    def refuse_shards(self) -> None:
        """Raise ArgumentError where torch's own step would find parts of a state."""
        state = self._theirs.state
        if any(state.get(p, {}).get(key) is part.tensor for p, key, part, _ in self._shards):
            raise ArgumentError(
                "a rank has parts of the optimizer's state (zero=), which its own step cannot use",
                hint="with step.gathered(): optimizer.step()",
            )

    def recount(self) -> None:
        """Take over how many steps there are, after one of torch's own.

        ArgumentError if torch has not made it for all parameters that a program updates.
        """
        if self.steps is None:
            return
        counts = {float(self._theirs.state[p]["step"]) for p in self._committed}
        count = _only(counts)
        self.steps.tensor.fill_(count)
        self.optimizer.step_count.tensor.fill_(count)

    def count_on_host(self) -> None:
        """Count a step, where a program does not."""
        if self.on_host and self.steps is not None:
            self.steps.tensor.add_(1.0)

    def _share(
        self,
        theirs: TorchOptimizer,
        algorithm: Algorithm,
        names: Mapping[int, str],
        orders: Mapping[str | int, Order],
    ) -> None:
        group_of = {names[id(p)]: g for g in theirs.param_groups for p in g["params"]}
        for name, (p, state) in self._states.items():
            options, order = group_of[name], orders.get(name)
            if order is not None and self.optimizer.of_matrices(tuple(p.shape), {"orthogonal": 1}):
                raise ArgumentError(
                    f"{type(theirs).__name__} looks at the rows and columns of {name}, whose axes "
                    "do not lie in memory in their own order",
                    found=f"shape {list(p.shape)}, strides {list(p.stride())}",
                    hint="make the parameter of tensor.contiguous()",
                )
            for key, kind in algorithm.state.items():
                own = getattr(self.optimizer, kind)
                if name not in own:
                    continue
                shape, place = own[name].shape, own[name].placement
                whole = Placement(place.shape)
                if state.get(key) is None:
                    init = options[algorithm.init[key]] if key in algorithm.init else 0.0
                    elementwise = order is not None or shape == tuple(p.shape)
                    like = elementwise and not place.splits
                    made = torch.empty_like(p) if like else p.new_empty(shape)
                    state[key] = made.fill_(init)
                tensor = state[key].detach()
                is_part = bool(place.splits) and tuple(tensor.shape) == place.local
                tensor = tensor if order is None or is_part else tensor.permute(order)
                if not is_part and (place.shape != tensor.shape or not tensor.is_contiguous()):
                    raise ArgumentError(
                        f"{key} of {name} lies in memory otherwise than the parameter, or is a "
                        "part of it (zero=)",
                        found=f"shape {list(state[key].shape)}, strides "
                        f"{list(state[key].stride())} beside {list(p.shape)}, {list(p.stride())}",
                        hint="with step.gathered(), of the step that parted it",
                    )
                if place.splits:
                    state[key] = tensor = tensor if is_part else shard_of(tensor, whole, place)
                own[name] = ndarray(tensor)
                if place.splits:
                    own[name].placement = place
                    self._shards.append((p, key, own[name], order))

    def _share_steps(self, theirs: TorchOptimizer) -> None:
        """Let the counts of all parameters be elements of one tensor, where torch wants them."""
        counts = {n: float(state.get("step", 0)) for n, (_, state) in self._states.items()}
        self._uncounted = {n for n, made in counts.items() if not made}
        count = _only({*counts.values()} - {0.0})
        group = theirs.param_groups[0]
        own = next(p for p, _ in self._states.values()).device
        device = own if group.get("capturable") or group.get("fused") else torch.device("cpu")
        self.on_host = device != own
        steps = torch.full((len(self._states),), count, dtype=torch.float32, device=device)
        for (_, state), step in zip(self._states.values(), steps.unbind(), strict=True):
            state["step"] = step
        self.steps = ndarray(steps)
        self.optimizer.step_count.tensor.fill_(count)


def _only(counts: set[float]) -> float:
    """Return the one number of steps, 0 for none; ArgumentError if there are several."""
    if len(counts) > 1:
        raise ArgumentError(
            "the parameters of the optimizer have made different numbers of steps",
            expected="one number for all",
            found=", ".join(f"{n:g}" for n in sorted(counts)),
        )
    return next(iter(counts), 0.0)


def _trained(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]
