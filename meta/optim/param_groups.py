"""``optimizer.param_groups``: an optimizer's groups as torch's schedulers read and write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from math import isclose
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import optim

from meta.base.errors import ArgumentError, UnknownName


class ParameterGroup(MutableMapping[str, Any]):
    """A group of an optimizer: "params", "lr" and the options of its algorithm.

    "lr" may be written: that of the first group is the optimizer's times the group's own multiple,
    and the others follow, as each keeps its ratio. A name that is no option, such as
    "initial_lr", is a note of who writes it. Other writes are ArgumentErrors.
    """

    def __init__(self, optimizer: Any, number: int) -> None:
        self._optimizer, self._number = optimizer, number
        self._notes: dict[str, Any] = {}

    @property
    def _group(self) -> dict[str, Any]:
        group: dict[str, Any] = self._optimizer.groups[self._number]
        return group

    @property
    def _options(self) -> dict[str, Any]:
        options = {**self._optimizer.options, **self._group}
        options.pop("rate", None)
        params = [self._optimizer._params[n] for n in options.pop("names")]
        return options | {"params": params, "lr": None}

    def __getitem__(self, name: str) -> Any:
        if name == "lr":
            return self._optimizer.lr.item() * float(self._group.get("rate", 1.0))
        return self._notes[name] if name in self._notes else self._options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._options:
            self._notes[name] = value
        elif name != "lr":
            raise ArgumentError(
                f"only the learning rate of a group may be written, not {name!r}",
                expected=f"what it is, {self[name]!r:.100}",
                found=f"{value!r:.100}",
                hint="a new optimizer with this option, and optimizer.load_state_dict",
            )
        elif self._number == 0:
            self._optimizer.lr = float(value) / float(self._group.get("rate", 1.0))
        elif not isclose(self["lr"], float(value), rel_tol=1e-5, abs_tol=1e-12):
            raise ArgumentError(
                "learning rates of groups keep their ratio, and follow the first group's",
                expected=self["lr"],
                found=float(value),
                hint="one factor for all groups, or an optimizer for each",
            )

    def __delitem__(self, name: str) -> None:
        del self._notes[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*self._options, *self._notes)

    def __len__(self) -> int:
        return len(self._options) + len(self._notes)

    def __repr__(self) -> str:
        return repr({n: len(v) if n == "params" else v for n, v in self.items()})


if TYPE_CHECKING:  # whose methods are typed otherwise
    TorchOptimizer = object
else:
    TorchOptimizer = optim.Optimizer


class SchedulerInterface(TorchOptimizer):
    """Mixin of `Optimizer`: what torch's schedulers ask of an optimizer.

    They take a subclass of torch's alone. Its other public methods are UnknownNames.
    """

    groups: list[dict[str, Any]]
    _params: dict[str, Any]
    torch_names: ClassVar[dict[str, str]] = {}
    """What the state of torch's optimizer of this name has, by our names; none where it differs."""
    torch_options: ClassVar[dict[str, Any]] = {}
    """Options of torch's which are no options here: what they are; all others are off."""

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The groups, as torch's schedulers read and write them; see `ParameterGroup`."""
        if "_torch_groups" not in vars(self):
            found: Any = [ParameterGroup(self, i) for i in range(len(self.groups))]
            vars(self)["_torch_groups"] = found
        return cast("list[ParameterGroup]", vars(self)["_torch_groups"])


def _refusal(name: str) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        hint = "code around optimizer.step(): there are no hooks"
        if name == "add_param_group":
            hint = "all groups when the optimizer is made: Adam(params, groups=[...])"
        raise UnknownName(f"an optimizer has no {name!r}", hint=hint)

    return get


for _name in vars(optim.Optimizer):
    if _name.startswith(("add_", "register_")):
        setattr(SchedulerInterface, _name, property(_refusal(_name)))
