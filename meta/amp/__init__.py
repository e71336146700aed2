"""Floor 3: mixed precision. `rules.py` is the table of cast rules, `core` what a rule is.

An operator written elsewhere states its own: ``meta.amp.always(op)``, ``never(op)``, or a function
under ``@meta.amp.custom(op)``. What states nothing follows its arguments.
"""

import importlib
import pkgutil

from meta.amp.core import always, cast_dtypes, custom, infer, never, rule_of

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["always", "cast_dtypes", "custom", "infer", "never", "rule_of"]
