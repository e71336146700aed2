"""Adam with decoupled weight decay."""

from __future__ import annotations

from meta import op
from meta.optim.adaptive import Adaptive
from meta.optim.step import step_maker


class AdamW(Adaptive):
    """AdamW, as torch.optim.AdamW (arXiv:1711.05101): parameters decay by learning_rate *
    weight_decay at each step. See `Adaptive` for the arguments.
    """

    operator = op.multi_tensor_adamw


with_adamw = step_maker(AdamW)
