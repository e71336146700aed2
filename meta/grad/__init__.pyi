"""Floor 3: gradients. One registry serves the eager tape and the autodiff pass.

Written by `python -m tools.stubs`.
"""

from meta.grad.core import grad as grad
from meta.grad.core import value_and_grad as value_and_grad

