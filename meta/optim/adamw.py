"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.optim.adaptive import Adaptive, adaptive_numbers
from meta.optim.step import StepMaker, training_step


class AdamW(Adaptive):
    """AdamW, as torch.optim.AdamW (arXiv:1711.05101): parameters decay by learning_rate *
    weight_decay at each step. See `Adaptive` for the arguments.
    """

    operator = op.multi_tensor_adamw


def with_adamw(
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    **options: Any,
) -> StepMaker:
    """Return a function that turns a model into its training step with AdamW.

    See `Adaptive` for the numbers and `meta.optim.training_step` for the step and its options.
    """
    numbers = adaptive_numbers(beta1, beta2, eps, weight_decay)
    return training_step(AdamW, learning_rate, numbers, **options)
