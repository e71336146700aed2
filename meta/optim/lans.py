"""LANS: LAMB with normalized gradients and a look ahead, for very large batches."""

from __future__ import annotations

from meta import op
from meta.optim.adaptive import Adaptive
from meta.optim.step import step_maker


class LANS(Adaptive):
    """LANS (arXiv:2006.13484, algorithm 2): gradients are normalized one by one, and the step is
    a mean of the directions of the moment and of the gradient. See `Adaptive` for the arguments.
    """

    defaults = Adaptive.defaults | {"eps": 1e-6}
    operator = op.multi_tensor_lans


with_lans = step_maker(LANS)
