"""Adam: steps of about one size, along the mean of the gradients."""

from __future__ import annotations

from meta import op
from meta.optim.adaptive import Adaptive
from meta.optim.step import step_maker


class Adam(Adaptive):
    """Adam, as torch.optim.Adam (arXiv:1412.6980): the weight decay is a part of the gradient. See
    `Adaptive` for the arguments.
    """

    defaults = Adaptive.defaults | {"weight_decay": 0.0}
    operator = op.multi_tensor_adam


with_adam = step_maker(Adam)
