"""Floor 6: optimizers. One file per algorithm, with an eager class and a ``with_<name>`` that
traces the whole step.
"""

from meta.optim import schedule, sgd
from meta.optim.sgd import SGD

__all__ = ["SGD", "schedule", "sgd"]
