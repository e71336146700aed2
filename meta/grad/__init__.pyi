"""Floor 3: gradients. One registry serves the eager tape and the autodiff pass.

Written by `python -m tools.stubs`.
"""

from meta.grad.core import gauss_newton_product as gauss_newton_product
from meta.grad.core import grad as grad
from meta.grad.core import hessian as hessian
from meta.grad.core import hvp as hvp
from meta.grad.core import jacfwd as jacfwd
from meta.grad.core import jacobian as jacobian
from meta.grad.core import jacrev as jacrev
from meta.grad.core import jvp as jvp
from meta.grad.core import linearize as linearize
from meta.grad.core import value_and_grad as value_and_grad
from meta.grad.core import vjp as vjp

