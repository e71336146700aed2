"""Stochastic gradient descent with momentum: v = momentum * v + dx; x = x - learning_rate * v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from meta import op
from meta.base.errors import ArgumentError
from meta.optim.optimizer import Optimizer
from meta.optim.options import require_range
from meta.optim.step import step_maker
from meta.runtime.ndarray import ndarray


class SGD(Optimizer):
    """SGD, as torch.optim.SGD without dampening; see `Optimizer` for the shared arguments. The
    state is one ``velocity`` per parameter, zeros at first; none where there is no momentum.

    Parameters
    ----------
    momentum: weight of the old velocity, in [0, 1). nesterov: look ahead along the velocity.
    weight_decay: the multiple of a parameter that is added to its gradient.
    """

    state_names = ("velocity",)
    velocity: dict[str, ndarray]
    defaults: ClassVar[dict[str, Any]] = {
        "learning_rate": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    }

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the state; see the class for the arguments."""
        super().build(*args, **kwargs)
        momentum = self.options["momentum"]
        moving = {n for g in self.groups if g.get("momentum", momentum) for n in g["names"]}
        self.velocity = {name: v for name, v in self.velocity.items() if name in moving}

    @classmethod
    def validate(cls, learning_rate: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options out of their range."""
        super().validate(learning_rate, options)
        momentum = options["momentum"]
        require_range(cls.__name__, "momentum", momentum, 0 <= momentum < 1, "in [0, 1)")
        if options["nesterov"] and momentum == 0:
            raise ArgumentError(
                "nesterov looks ahead along the momentum, and there is none",
                hint="momentum=0.9, or nesterov=False",
            )

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


with_sgd = step_maker(SGD)
