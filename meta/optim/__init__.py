"""Floor 6: optimizers. One file per algorithm, with a class for eager loops and a ``with_<name>``
that traces the whole step; see `Optimizer` and `training_step`.

A training step is one traced function of forward pass, backward pass and update. The learning rate
is an input of it. Clipping, loss scale, accumulation and average are operators of the same
function, and their state, like the optimizer's, is in ``step.state()``. Half precision parameters
have float32 masters, which loading weights writes too (`meta/model/state.py`).
"""

from meta.optim import adam, adamw, lamb, lans, schedule, sgd
from meta.optim.adam import Adam, with_adam
from meta.optim.adamw import AdamW, with_adamw
from meta.optim.lamb import LAMB, with_lamb
from meta.optim.lans import LANS, with_lans
from meta.optim.loss_scale import DynamicLossScale, LossScale, StaticLossScale
from meta.optim.optimizer import Optimizer
from meta.optim.sgd import SGD, with_sgd
from meta.optim.step import StepMaker, TrainingStep, training_step

__all__ = [
    "LAMB",
    "LANS",
    "SGD",
    "Adam",
    "AdamW",
    "DynamicLossScale",
    "LossScale",
    "Optimizer",
    "StaticLossScale",
    "StepMaker",
    "TrainingStep",
    "adam",
    "adamw",
    "lamb",
    "lans",
    "schedule",
    "sgd",
    "training_step",
    "with_adam",
    "with_adamw",
    "with_lamb",
    "with_lans",
    "with_sgd",
]
