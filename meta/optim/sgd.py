"""Stochastic gradient descent with momentum: v = momentum * v + dx; x = x - learning_rate * v."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.optim.groups import Params
from meta.optim.optimizer import Optimizer, require_range
from meta.optim.step import StepMaker, training_step


class SGD(Optimizer):
    """SGD, as torch.optim.SGD without dampening; see `Optimizer` for the shared arguments.

    Parameters
    ----------
    momentum: weight of the old velocity, in [0, 1). nesterov: look ahead along the velocity.
    weight_decay: the multiple of a parameter that is added to its gradient.
    """

    def build(
        self,
        params: Params,
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        groups: Iterable[Mapping[str, Any]] = (),
        master_weights: bool = True,
    ) -> None:
        """Make one velocity per parameter, all zero; none where there is no momentum."""
        options = {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().build(params, learning_rate, groups, master_weights, **options)
        moving = {
            name
            for group in self.groups
            if group.get("momentum", momentum)
            for name in group["names"]
        }
        self.velocity = {name: v for name, v in self.velocity.items() if name in moving}

    state_names = ("velocity",)

    @classmethod
    def validate(cls, learning_rate: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options out of their range."""
        super().validate(learning_rate, options)
        momentum = options["momentum"]
        require_range(cls.__name__, "momentum", momentum, 0 <= momentum < 1, "in [0, 1)")
        if options["nesterov"] and momentum == 0:
            raise ArgumentError("nesterov looks ahead along the momentum, and there is none")

    def apply(
        self,
        x: list[Any],
        dx: list[Any],
        state: list[list[Any]],
        learning_rate: Any,
        weight_decay: Any,
        numbers: Mapping[str, Any],
        further: Mapping[str, Any],
    ) -> None:
        """Call `multi_tensor_sgd`."""
        op.multi_tensor_sgd(
            x,
            dx,
            *state,
            learning_rate,
            numbers["momentum"],
            weight_decay,
            nesterov=numbers["nesterov"],
            **further,
        )


def with_sgd(
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    **options: Any,
) -> StepMaker:
    """Return a function that turns a model into its training step with SGD.

    ``step = with_sgd(0.1, 0.9)(model)`` is called as ``step(dy, *inputs)``; see
    `meta.optim.training_step` for the step and the further options.
    """
    numbers = {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
    return training_step(SGD, learning_rate, numbers, **options)
