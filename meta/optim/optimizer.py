"""`Optimizer`: what all algorithms share: parameters in groups, state, and one call of a
multi-tensor operator for all of them.

An algorithm is a subclass in `algorithms.py`. It names its operator, its state and its options with
their defaults, and checks these.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from math import inf
from numbers import Real
from typing import Any, ClassVar

import torch

from meta import op
from meta.base.bounded_cache import bounded_insert
from meta.base.dtype import TO_TORCH, bits
from meta.base.errors import ArgumentError
from meta.base.signature_check import check_signature
from meta.grad.core import no_grad
from meta.model.model import Model
from meta.model.state import Unmatched
from meta.op.core import Op
from meta.optim.data_parallel import (
    ParameterShard,
    Step,
    actual_splits,
    apply_sharded_steps,
    flat_split,
    gradient_norm,
    has_global_sums,
    step_of_formula,
)
from meta.optim.options import (
    Params,
    bind,
    list_groups,
    name_parameters,
    operator_options,
    parameters,
    require_kinds,
    require_range,
    resolve,
)
from meta.optim.param_groups import SchedulerInterface
from meta.optim.torch_state import arrays_of_torch
from meta.runtime.master_weights import add_master, master_pairs, synchronize_masters
from meta.runtime.ndarray import array, ndarray
from meta.runtime.placement import Placement, shard_of

NORM_EPS = 1e-6
"""Keeps the division by a gradient's norm away from zero, as torch.nn.utils.clip_grad_norm_."""


def clip_factor(norm: Any, clip_norm: float) -> Any:
    """Return what gradients of a norm are multiplied by, so that it is not above ``clip_norm``."""
    return op.minimum(clip_norm / (norm + NORM_EPS), 1.0)


def require_clip(clip_norm: float | None, clip_value: float | None) -> None:
    """Raise ArgumentError for bounds of gradients out of their range, or both of them."""
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if value is not None:
            require_range("a step", name, value, isinstance(value, Real) and value > 0, "> 0")
    if clip_norm is not None and clip_value is not None:
        raise ArgumentError(
            "gradients are clipped by their norm or by value, not both",
            found=f"clip_norm={clip_norm}, clip_value={clip_value}",
        )


MAX_CONSTANTS = 256
"""Lists of numbers that an optimizer keeps as arrays."""

MASTER_DTYPE = "float32"


@dataclass(frozen=True)
class ParameterBatch:
    """Parameters of one kind, by name, which one call updates.

    options: those that they have in common. decays, rates: of each its weight decay, and the
    multiple of the learning rate, a number or a float32[].
    """

    names: list[str]
    options: dict[str, Any]
    decays: list[float]
    rates: list[Any]

    def only(self, names: Container[str]) -> ParameterBatch:
        """Return those of its parameters that are among ``names``."""
        chosen = [i for i, name in enumerate(self.names) if name in names]
        decays, rates = ([own[i] for i in chosen] for own in (self.decays, self.rates))
        return ParameterBatch([self.names[i] for i in chosen], self.options, decays, rates)


class Optimizer(Model, SchedulerInterface):
    """Base class of the optimizers, which serve eager loops: ``loss.backward(); optimizer.step();
    optimizer.zero_grad()``, and, with ``with_<name>``, a traced `TrainingStep`.

    Parameters
    ----------
    params: arrays that require gradients (`Model.parameters`), pairs of name and array
        (`Model.named_parameters`), a mapping of names to arrays, or a list of groups: dicts of
        "params" and of options that differ for them. An array that does not require a gradient is
        left out: it has no state, and is not changed.
    lr: a number. It is kept in an array: assign a number, or ``update`` it, between
        steps. A group's own learning rate keeps its ratio to it, as under torch's schedules.
    groups: further groups, whose "params" may be patterns of names, such as ``{"params":
        ["*.bias", "*norm*"], "weight_decay": 0.0}``; a parameter is in the first that names it.
    master_weights: whether half precision parameters are kept in float32 beside, with state in
        float32: updates are often smaller than what half precision can resolve. What is
        written to a parameter between steps, its master takes over at the next one.
    maximize: go uphill, along the gradients; a group may differ in it.
    placements: by name, which part of a parameter is updated on this rank (`Placement`); of those
        that are not named, what the array is a part of. The state is of that part, and says so.

    Attributes
    ----------
    lr: float32[]. step_count: float32[], the number of updates made. placements: which part of each
    parameter this rank updates, by name. What an algorithm keeps are dicts of arrays by the name of
    the parameter, as ``master`` is. param_groups: see `ParameterGroup`.

    >>> net = meta.model.Linear(3, 1)
    >>> groups = [{"params": ["bias"], "lr": 0.5}]
    >>> optimizer = meta.optim.SGD(net.named_parameters(), lr=0.25, groups=groups)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.25, 0.5]
    """

    operator: ClassVar[Op]
    """The step of several parameters."""
    state_names: ClassVar[tuple[str, ...]] = ()
    """What there is of each parameter, zeros at first, in the operator's order."""
    own_state_names: ClassVar[tuple[str, ...]] = ()
    """What there is besides, which the operator does not take."""
    shares: ClassVar[tuple[str, ...]] = ()
    """The options in [0, 1). All other numbers are finite and not negative."""
    whole_names: ClassVar[tuple[str, ...]] = ()
    """What there is of a parameter that ranks have whole, even if they have parts of it."""
    defaults: ClassVar[dict[str, Any]] = {}
    """The options of the algorithm, ``lr`` first, under torch's names; those that all share come
    behind.
    """

    @classmethod
    def constructor_signature(cls) -> inspect.Signature:
        """Return ``params``, the options in `defaults`, and those that all share."""
        either, by_name = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        shared = (
            Parameter("groups", either, default=(), annotation=Iterable[Mapping[str, Any]]),
            Parameter("master_weights", either, default=True, annotation=bool),
            Parameter("maximize", by_name, default=False, annotation=bool),
        )
        params = Parameter("params", either, annotation=Params)
        return inspect.Signature([params, *parameters(cls.defaults), *shared])

    def build(
        self, *args: Any, placements: Mapping[str, Placement] | None = None, **kwargs: Any
    ) -> None:
        """Make the state; ArgumentError for options that there are not, or out of their range."""
        options = bind(type(self).__name__, self.constructor_signature(), args, kwargs)
        params, groups = options.pop("params"), list_groups(options.pop("groups"))
        lr, master_weights = options.pop("lr"), options.pop("master_weights")
        self.validate(lr, options)
        given, own_groups = name_parameters(params)
        trained = {n: a for n, a in given.items() if a.requires_grad}
        if not trained:
            raise ArgumentError(
                "there is nothing to train: no parameter requires a gradient",
                found=f"{len(given)} arrays",
                hint="set requires_grad = True on those that are to change"
                if given
                else "no array was given: an iterator gives its arrays once",
            )
        for name, a in trained.items():
            if a.node is not None:
                raise ArgumentError(
                    f"{name!r} was computed from an array that requires a gradient: its own has no "
                    "place",
                    expected="arrays where gradients end, as meta.model.parameter makes them",
                    found=f"shape {a.shape}, dtype {a.dtype}",
                    hint="meta.model.parameter(x.detach())",
                )
        self._params = trained
        self._constants: dict[Any, ndarray] = {}
        device = next(iter(trained.values())).device
        self.lr: Any = array(lr, "float32", device=device)
        self.step_count = array(0.0, "float32", device=device)
        self.options = options
        stated = resolve(given, [*own_groups, *groups], ("lr", *options))
        self.groups = [
            {"names": tuple(n for n in g.names if n in trained), **self._stated(g.options)}
            for g in stated
        ]
        masters = {
            n: a
            for n, a in trained.items()
            if master_weights and bits(a.dtype) < bits(MASTER_DTYPE)
        }
        places = {n: a.placement for n, a in trained.items()} | dict(placements or {})
        self.placements = places
        self.master = {
            n: array(parameter_shard(a, places[n]), MASTER_DTYPE) for n, a in masters.items()
        }
        for name, master in self.master.items():
            master.placement = places[name]
        self._announce_masters()
        for kind in (*self.state_names, *self.own_state_names):
            setattr(self, kind, {})
        stated_of = {n: {**self.options, **group} for group in self.groups for n in group["names"]}
        for name in trained:
            x = self.master.get(name, trained[name])
            place = places[name]
            self._require_updatable(name, place, stated_of[name])
            for kind, shape in self.state_shapes(place.shape, stated_of[name]).items():
                split = place.splits and kind not in self.whole_names
                kept = zeros(place.local if split else shape, x.dtype, x.device)
                if split:
                    kept.placement = place
                getattr(self, kind)[name] = kept

    @classmethod
    def state_shapes(
        cls, shape: tuple[int, ...], options: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is kept of a parameter of a shape, by the names in
        `state_names` and `own_state_names`; what the options make useless is left out.
        """
        return dict.fromkeys(cls.state_names, shape)

    @classmethod
    def of_matrices(cls, shape: tuple[int, ...], options: Mapping[str, Any]) -> bool:
        """Whether the step of a parameter of a shape looks at its rows and columns."""
        return False

    def _require_updatable(self, name: str, place: Placement, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for a parameter of whose parts this rank cannot make a step."""
        splits = actual_splits(place)
        if self.of_matrices(place.shape, options) and splits not in ([], [flat_split(place)]):
            raise ArgumentError(
                f"{type(self).__name__} looks at the rows and columns of a matrix, and tensor "
                f"parallelism divides {name!r}",
                expected="an algorithm of elements and norms, such as AdamW or LAMB",
                found=f"{place.local} of {place.shape}, along {[s.over for s in splits]}",
                hint="a plan that leaves it whole: zero=1, 2 and 3 share its state among ranks",
            )

    def _stated(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return a group's options, its learning rate as a multiple of the optimizer's."""
        own: dict[str, Any] = {n: tuple(x) if isinstance(x, list) else x for n, x in stated.items()}
        rate = own.pop("lr", None)
        base = self.lr.item()
        self.validate(base if rate is None else rate, {**self.options, **own})
        if rate is None:
            return own
        if base == 0:
            raise ArgumentError(
                "a group has a learning rate of its own, which is a multiple of the optimizer's",
                expected="an optimizer's lr above 0",
                found=f"{base}, and a group's {rate}",
            )
        return {**own, "rate": rate / base}

    @classmethod
    def validate(cls, lr: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options of another kind, or out of their range."""
        given = {"lr": lr, **options}
        require_kinds(cls.__name__, given, cls.defaults)
        for name, value in given.items():
            bound, expected = (1, "in [0, 1)") if name in cls.shares else (inf, ">= 0 and finite")
            values = value if isinstance(value, tuple | list) else (value,)
            fits = all(0 <= x < bound for x in values)
            require_range(cls.__name__, name, value, fits, expected)

    def __setattr__(self, name: str, value: Any) -> None:
        # A number goes into the array that programs read.
        if name == "lr" and name in vars(self) and not isinstance(value, ndarray):
            self.lr.update(value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fget is not None:
            return own.fget(self)  # which has raised an AttributeError, and says why
        return super().__getattr__(name)

    @check_signature
    def step(self, *, clip_norm: float | None = None, clip_value: float | None = None) -> None:
        """Update every parameter that has a gradient, in place.

        clip_norm, clip_value: one of them, as `meta.optim.training_step` takes them. Raises
        ArgumentError if no parameter has a gradient.
        """
        require_clip(clip_norm, clip_value)
        gradients = {n: a.grad for n, a in self._params.items() if a.grad is not None}
        if not gradients:
            raise ArgumentError(
                "no parameter has a gradient",
                expected="loss.backward() before each step",
                hint="model.to(...) makes other arrays: make the optimizer after it",
            )
        with no_grad():
            factor: Any = 1.0
            if clip_norm is not None:
                places = {n: self._params[n].placement for n in gradients}
                factor = clip_factor(gradient_norm(gradients, places), clip_norm)
            self.update(self._params, gradients, factor, clip_value)

    def load_state_dict(self, state: Mapping[str, Any], **options: Any) -> Unmatched:
        """See `Model.load_state_dict`; takes that of torch's optimizer, too (`torch_state.py`)."""
        found = arrays_of_torch(self, state)
        return super().load_state_dict(found or state, **({"strict": False} if found else options))

    @check_signature
    def zero_grad(self) -> None:
        """Forget the gradients."""
        for x in self._params.values():
            x.grad = None

    def update(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        factor: Any = 1.0,
        clip_value: float | None = None,
        skip: Any = None,
    ) -> None:
        """Make an update from gradients by name; a traced step calls it with symbols.

        factor, clip_value, skip: see `meta.op.optimizer`. Parameters without a gradient stay as
        they are.
        """
        one = op.ones_like(self.step_count)
        op.multi_tensor_axpby((one,), (self.step_count,), 1.0, 1.0, skip)
        further: dict[str, Any] = {"skip": skip}
        if clip_value is not None:
            further["clip_value"] = clip_value
        # Of arrays: a program is traced once, and who runs it follows its arrays each time.
        kept = (a for a in (*params.values(), *self.master.values()) if isinstance(a, ndarray))
        with synchronize_masters(master_pairs(kept)):
            for call in self._calls(params, gradients):
                further["factor"] = factor * -1.0 if call.options["maximize"] else factor
                self.apply(call, params, gradients, further)

    def apply(
        self,
        call: ParameterBatch,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        further: Mapping[str, Any],
    ) -> None:
        """Update the parameters of a call; further: ``factor``, ``skip`` and perhaps
        ``clip_value``, as `update` has them.
        """
        if has_global_sums(self.operator):
            parts = {n for n in call.names if actual_splits(self.placements[n])}
            if parts:
                apply_sharded_steps(self, call.only(parts), params, gradients, further)
                call = call.only(set(call.names) - parts)
                if not call.names:
                    return
        masters = [n for n in call.names if n in self.master]
        kept = [getattr(self, kind) for kind in self.state_names]
        of_operator = self.operator.schema.names
        self.operator(
            [self.master[n] if masters else params[n] for n in call.names],
            [gradients[n] for n in call.names],
            *([own[n] for n in call.names if n in own] for own in kept),
            *([self.step_count] if "step" in of_operator else []),
            self.rate(call.rates),
            weight_decay=float(call.decays[0])
            if len(set(call.decays)) == 1
            else self._constant(call.decays, "float64"),
            copies=[params[n] for n in masters],
            **{n: x for n, x in operator_options(call.options).items() if n in of_operator},
            **further,
        )

    def new_values(
        self,
        x: Any,
        g: Any,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        rate: Any,
        decay: float,
        held: ParameterShard,
    ) -> Step:
        """Make the step of one parameter, which returns its new values and those of its state.

        x, g, state: what this rank has of the parameter, its gradient (scaled, clamped) and its
        state by name, all in float32, or in float64 for such a parameter. options: those of its
        group. rate: the learning rate, shape (), of that dtype. held: which part of the parameter
        this is. ``self.step_count`` is the number of this step, from 1.
        """
        numbers = {"step": self.step_count, "learning_rate": rate, "weight_decay": decay}
        return step_of_formula(
            self.operator, x, g, state, operator_options(options) | numbers, held
        )

    def _calls(
        self, params: Mapping[str, Any], gradients: Mapping[str, Any]
    ) -> list[ParameterBatch]:
        """Return the calls that update all parameters that have a gradient."""
        calls: dict[Any, ParameterBatch] = {}
        for group in self.groups:
            options = {**self.options, **group}
            decay, rate = options.pop("weight_decay", 0.0), options.pop("rate", 1.0)
            for name in options.pop("names"):
                if name not in gradients:
                    continue
                kind = params[name].dtype, name in self.master, tuple(options.items())
                call = calls.setdefault(kind, ParameterBatch([], options, [], []))
                call.names.append(name)
                call.decays.append(decay)
                call.rates.append(rate)
        known = {name for call in calls.values() for name in call.names}
        unknown = [name for name in gradients if name not in known]
        if unknown:
            raise ArgumentError(
                f"the parameter {unknown[0]!r} has a gradient, and no state in the optimizer",
                expected="the parameters that required gradients when the optimizer was made",
                hint="make a new optimizer (or step) after thawing parameters",
            )
        return list(calls.values())

    def rate(self, multiples: list[Any]) -> Any:
        """Return the learning rate of parameters, of all of them or of each, by the multiples in
        `ParameterBatch.rates`.
        """
        if any(isinstance(m, ndarray) for m in multiples):
            if len(set(map(id, multiples))) == 1:
                return self.lr * multiples[0]
            return op.multiply(op.stack(multiples), self.lr)
        if all(m == 1 for m in multiples):
            return self.lr
        if len(set(multiples)) == 1:
            return self.lr * multiples[0]
        return op.multiply(self._constant(multiples, "float32"), self.lr)

    def _constant(self, values: list[float], dtype: str) -> ndarray:
        """Return an array of numbers, the same for the same ones: an eager step copies nothing."""
        key = (*values, dtype, self.lr.device)
        found = self._constants.get(key)
        if found is None:
            found = array(values, dtype, device=self.lr.device)
            bounded_insert(self._constants, key, found, MAX_CONSTANTS)
        return found

    def __repr__(self) -> str:
        numbers = {"lr": self.lr.item(), **self.options}
        stated = ", ".join(
            f"{n}={x:g}" if type(x) is float else f"{n}={x}" for n, x in numbers.items()
        )
        groups = f" in {len(self.groups)} groups" if len(self.groups) > 1 else ""
        return f"{type(self).__name__}({stated}; {len(self._params)} parameters{groups})"

    def _announce_masters(self) -> None:
        """Let who writes parameters, and who runs updates, know the masters."""
        for name, master in self.master.items():
            add_master(self._params[name], master)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        result = super().__deepcopy__(memo)
        assert isinstance(result, Optimizer)
        result._announce_masters()
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: nothing that a scheduler of torch has put here."""
        theirs = ("_torch_groups", "_opt_called", "step")
        return {k: v for k, v in super().__getstate__().items() if k not in theirs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._announce_masters()


def parameter_shard(x: ndarray, placement: Placement) -> ndarray:
    """Return this rank's part of an array under a placement that splits it further."""
    if placement == x.placement:
        return x
    found = ndarray(shard_of(x.tensor.detach(), x.placement, placement), name=x.name)
    found.placement = placement
    return found


def zeros_like(x: ndarray, dtype: str, placement: Placement) -> ndarray:
    """Return zeros of the shape of this rank's part of an array, on its device."""
    found = zeros(placement.local, dtype, x.device)
    if placement.splits:
        found.placement = placement
    return found


def zeros(shape: tuple[int, ...], dtype: str, device: object) -> ndarray:
    """Return zeros on a device."""
    return ndarray(torch.zeros(shape, dtype=TO_TORCH[dtype], device=str(device)))
