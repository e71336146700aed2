"""What a cast rule is, how one is stated, and what follows from it for a call."""

from meta.amp.core.resolve import cast_dtypes, float_dtypes
from meta.amp.core.rule import CastRule, custom, rule_of
from meta.amp.core.words import always, infer, never

__all__ = [
    "CastRule",
    "always",
    "cast_dtypes",
    "custom",
    "float_dtypes",
    "infer",
    "never",
    "rule_of",
]
