"""What a gradient is: the rule, its registration, and the eager tape."""

from meta.grad.core.collapse import collapse
from meta.grad.core.rule import Rule, gradient, not_differentiable, rule_of
from meta.grad.core.tape import no_grad, record

__all__ = ["Rule", "collapse", "gradient", "no_grad", "not_differentiable", "record", "rule_of"]
