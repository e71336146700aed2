"""What a gradient is: the rule, its registration, and the eager tape."""

from meta.grad.core.checkpoint import checkpointed
from meta.grad.core.collapse import collapse, onto
from meta.grad.core.normalised import second_gradient
from meta.grad.core.rule import Rule, gradient, not_differentiable, rule_of
from meta.grad.core.tape import grad, no_grad, record

__all__ = [
    "Rule",
    "checkpointed",
    "collapse",
    "grad",
    "gradient",
    "no_grad",
    "not_differentiable",
    "onto",
    "record",
    "rule_of",
    "second_gradient",
]
