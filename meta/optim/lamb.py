"""LAMB: Adam's direction, with steps as long as the parameters, for large batches."""

from __future__ import annotations

from meta import op
from meta.optim.adaptive import Adaptive
from meta.optim.step import step_maker


class LAMB(Adaptive):
    """LAMB (arXiv:1904.00962, algorithm 2): Adam's direction with the weight decay, scaled to the
    norm of each parameter. See `Adaptive` for the arguments.
    """

    defaults = Adaptive.defaults | {"eps": 1e-6}
    operator = op.multi_tensor_lamb


with_lamb = step_maker(LAMB)
