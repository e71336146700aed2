"""Floor 6: optimizers. Each has a class for eager loops and a ``with_<name>`` that traces the whole

Written by `python -m tools.stubs`.
"""

from . import schedule as schedule
from meta.optim.algorithms import Adagrad as Adagrad
from meta.optim.algorithms import Adam as Adam
from meta.optim.algorithms import AdamW as AdamW
from meta.optim.algorithms import LAMB as LAMB
from meta.optim.algorithms import LANS as LANS
from meta.optim.algorithms import Lion as Lion
from meta.optim.algorithms import RMSprop as RMSprop
from meta.optim.algorithms import SGD as SGD
from meta.optim.algorithms import with_adagrad as with_adagrad
from meta.optim.algorithms import with_adam as with_adam
from meta.optim.algorithms import with_adamw as with_adamw
from meta.optim.algorithms import with_lamb as with_lamb
from meta.optim.algorithms import with_lans as with_lans
from meta.optim.algorithms import with_lion as with_lion
from meta.optim.algorithms import with_rmsprop as with_rmsprop
from meta.optim.algorithms import with_sgd as with_sgd
from meta.optim.composed import Adafactor as Adafactor
from meta.optim.composed import Muon as Muon
from meta.optim.composed import with_adafactor as with_adafactor
from meta.optim.composed import with_muon as with_muon
from meta.optim.conjugate_gradients import Solution as Solution
from meta.optim.conjugate_gradients import conjugate_gradient as conjugate_gradient
from meta.optim.implicit import custom_root as custom_root
from meta.optim.implicit import dense_solve as dense_solve
from meta.optim.implicit import fixed_point as fixed_point
from meta.optim.loss_scale import DynamicLossScale as DynamicLossScale
from meta.optim.loss_scale import LossScale as LossScale
from meta.optim.loss_scale import StaticLossScale as StaticLossScale
from meta.optim.optimizer import Optimizer as Optimizer
from meta.optim.quasi_newton import Minimum as Minimum
from meta.optim.quasi_newton import lbfgs as lbfgs
from meta.optim.step import StepMaker as StepMaker
from meta.optim.step import TrainingStep as TrainingStep
from meta.optim.step import training_step as training_step

