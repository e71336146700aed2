"""Floor 6: optimizers. Each has a class for eager loops and a ``with_<name>`` that traces the whole
step (`algorithms.py`, `composed.py`); see `Optimizer` and `training_step`.

A training step is one traced function of forward pass, backward pass and update. The learning rate
is an input of it. Clipping, loss scale, accumulation and average are operators of the same
function, and their state, like the optimizer's, is in ``step.state()``. Half precision parameters
have float32 masters, which take over what others write to the parameters
(`meta/runtime/master_weights.py`).
"""

from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.optim import algorithms, composed, schedule

# A new algorithm is exported where it is written.
from meta.optim.algorithms import *  # noqa: F403
from meta.optim.composed import *  # noqa: F403
from meta.optim.conjugate_gradients import Solution, conjugate_gradient
from meta.optim.implicit import custom_root, dense_solve, fixed_point
from meta.optim.loss_scale import DynamicLossScale, LossScale, StaticLossScale
from meta.optim.optimizer import Optimizer
from meta.optim.quasi_newton import Minimum, lbfgs
from meta.optim.step import StepMaker, TrainingStep, training_step

__all__ = [
    *algorithms.__all__,
    *composed.__all__,
    "DynamicLossScale",
    "Solution",
    "LossScale",
    "Minimum",
    "Optimizer",
    "StaticLossScale",
    "StepMaker",
    "TrainingStep",
    "conjugate_gradient",
    "custom_root",
    "dense_solve",
    "fixed_point",
    "lbfgs",
    "schedule",
    "training_step",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.optim", name, __all__)
