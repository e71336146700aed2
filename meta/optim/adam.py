"""Adam: steps of about one size, along the mean of the gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meta import op
from meta.optim.adaptive import Adaptive, adaptive_numbers
from meta.optim.groups import Params
from meta.optim.step import StepMaker, training_step


class Adam(Adaptive):
    """Adam, as torch.optim.Adam (arXiv:1412.6980): the weight decay is a part of the gradient. See
    `Adaptive` for the arguments.
    """

    operator = op.multi_tensor_adam

    def build(
        self,
        params: Params,
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        groups: Iterable[Mapping[str, Any]] = (),
        master_weights: bool = True,
    ) -> None:
        """Make two moments per parameter, all zero."""
        super().build(
            params, learning_rate, beta1, beta2, eps, weight_decay, groups, master_weights
        )


def with_adam(
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Any,
) -> StepMaker:
    """Return a function that turns a model into its training step with Adam.

    See `Adaptive` for the numbers and `meta.optim.training_step` for the step and its options.
    """
    numbers = adaptive_numbers(beta1, beta2, eps, weight_decay)
    return training_step(Adam, learning_rate, numbers, **options)
