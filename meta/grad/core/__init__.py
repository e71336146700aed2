"""What a gradient is: the rule, its registration, and the eager tape.

Every operator has a rule or states why it has none (`not_differentiable`). The parameters of a rule
are checked when it is registered.
"""

from meta.grad.core import torch_autograd
from meta.grad.core.checkpoint import run_checkpointed
from meta.grad.core.collapse import collapse, in_dtype, onto
from meta.grad.core.custom_rule import run_with_rule
from meta.grad.core.functional import grad, pullback, value_and_grad
from meta.grad.core.holomorphic import conjugated, holomorphic
from meta.grad.core.jacobians import gauss_newton_product, hessian, hvp, jacfwd, jacobian, jacrev
from meta.grad.core.rule import Rule, gradient, gradients, not_differentiable, rule_of
from meta.grad.core.tape import record
from meta.grad.core.transforms import jvp, linearize, vjp
from meta.runtime.no_gradient import no_grad

__all__ = [
    "Rule",
    "collapse",
    "conjugated",
    "gauss_newton_product",
    "grad",
    "gradient",
    "gradients",
    "hessian",
    "holomorphic",
    "hvp",
    "in_dtype",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "no_grad",
    "not_differentiable",
    "onto",
    "pullback",
    "record",
    "rule_of",
    "run_checkpointed",
    "run_with_rule",
    "torch_autograd",
    "value_and_grad",
    "vjp",
]
