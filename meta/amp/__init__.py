"""Floor 3: mixed precision. `rules.py` is the table of cast rules, `cast_rule.py` what a rule is.

`autocast(model, dtype=...)` is a model in mixed precision, ``with autocast_scope(dtype=...)`` does
the same for a block of calls. An operator written elsewhere states its rule:
``meta.amp.always(op)``, ``never(op)``, ``infer(op)``, or a function under
``@meta.amp.custom(op)``; ``register_op_cast_rule(op, generic_cast(False, 1))`` says the same of its
first argument only. ``with custom_rules({...})`` says other rules for a block.
docs/howto/cast_rule.md walks through it.
"""

import importlib
import pkgutil
from typing import Any

from meta.amp.cast_rule import (
    always,
    cast_dtypes,
    custom,
    custom_rules,
    generic_cast,
    infer,
    infer_cast,
    never,
    register_op_cast_rule,
    rule_of,
)
from meta.amp.scope import autocast, autocast_scope
from meta.base.did_you_mean import unknown_attribute

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "always",
    "autocast",
    "autocast_scope",
    "cast_dtypes",
    "custom",
    "custom_rules",
    "generic_cast",
    "infer",
    "infer_cast",
    "never",
    "register_op_cast_rule",
    "rule_of",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.amp", name, __all__)
