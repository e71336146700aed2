"""What Adam and its relatives share: two moments of the gradient as state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from meta.optim.groups import Params
from meta.optim.optimizer import Optimizer, require_range


class Adaptive(Optimizer):
    """Base class of Adam and its relatives; see `Optimizer` for the shared arguments.

    Parameters
    ----------
    beta1, beta2: how much of the running means of the gradient and of its square stays, in [0, 1).
    eps: keeps a division by zero away. weight_decay: the pull towards zero.
    """

    state_names = ("m", "v")
    operator: ClassVar[Callable[..., Any]]

    def build(
        self,
        params: Params,
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        groups: Iterable[Mapping[str, Any]] = (),
        master_weights: bool = True,
    ) -> None:
        """Make two moments per parameter, all zero."""
        numbers = adaptive_numbers(beta1, beta2, eps, weight_decay)
        super().build(params, learning_rate, groups, master_weights, **numbers)

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


def adaptive_numbers(
    beta1: float, beta2: float, eps: float, weight_decay: float
) -> dict[str, float]:
    """Return the options of these optimizers by name."""
    return {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
