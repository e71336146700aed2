"""What Adam and its relatives share: two moments of the gradient as state, and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from meta.optim.optimizer import Optimizer
from meta.optim.options import require_range


class Adaptive(Optimizer):
    """Base class of Adam and its relatives; see `Optimizer` for the shared arguments. The state is
    two moments per parameter, ``m`` and ``v``, zeros at first.

    Parameters
    ----------
    beta1, beta2: how much of the running means of the gradient and of its square stays, in [0, 1).
    eps: keeps a division by zero away. weight_decay: the pull towards zero.
    """

    state_names = ("m", "v")
    defaults: ClassVar[dict[str, Any]] = {
        "learning_rate": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.01,
    }
    operator: ClassVar[Callable[..., Any]]

    @classmethod
    def validate(cls, learning_rate: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options out of their range."""
        super().validate(learning_rate, options)
        for name in ("beta1", "beta2"):
            require_range(cls.__name__, name, options[name], 0 <= options[name] < 1, "in [0, 1)")
        require_range(cls.__name__, "eps", options["eps"], options["eps"] >= 0, ">= 0")

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
        """Call the operator."""
        betas = numbers["beta1"], numbers["beta2"], numbers["eps"]
        type(self).operator(
            x, dx, *state, self.step_count, learning_rate, *betas, weight_decay, **further
        )
