"""What a cast rule is, how one is stated, what follows from it for a call, and who asks for it."""

from meta.amp.core.models import autocast
from meta.amp.core.resolve import (
    Finite,
    cast_dtypes,
    cast_finite,
    float_dtypes,
    require_half,
    stays_finite,
    too_large,
)
from meta.amp.core.rule import (
    CastRule,
    Casts,
    custom_rules,
    generic_cast,
    infer_cast,
    register_op_cast_rule,
    require_rules,
    rule_of,
    rules_in_force,
)
from meta.amp.core.scope import autocast_scope
from meta.amp.core.words import always, custom, infer, never

__all__ = [
    "CastRule",
    "Casts",
    "Finite",
    "always",
    "autocast",
    "autocast_scope",
    "cast_dtypes",
    "cast_finite",
    "custom",
    "custom_rules",
    "float_dtypes",
    "generic_cast",
    "infer",
    "infer_cast",
    "never",
    "register_op_cast_rule",
    "require_half",
    "require_rules",
    "rule_of",
    "rules_in_force",
    "stays_finite",
    "too_large",
]
