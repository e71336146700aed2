"""LANS: LAMB with normalized gradients and a look ahead, for very large batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meta import op
from meta.optim.adaptive import Adaptive, adaptive_numbers
from meta.optim.groups import Params
from meta.optim.step import StepMaker, training_step


class LANS(Adaptive):
    """LANS (arXiv:2006.13484, algorithm 2): gradients are normalized one by one, and the step is
    a mean of the directions of the moment and of the gradient. See `Adaptive` for the arguments.
    """

    operator = op.multi_tensor_lans

    def build(
        self,
        params: Params,
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        groups: Iterable[Mapping[str, Any]] = (),
        master_weights: bool = True,
    ) -> None:
        """Make two moments per parameter, all zero."""
        super().build(
            params, learning_rate, beta1, beta2, eps, weight_decay, groups, master_weights
        )


def with_lans(
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    **options: Any,
) -> StepMaker:
    """Return a function that turns a model into its training step with LANS.

    See `Adaptive` for the numbers and `meta.optim.training_step` for the step and its options.
    """
    numbers = adaptive_numbers(beta1, beta2, eps, weight_decay)
    return training_step(LANS, learning_rate, numbers, **options)
