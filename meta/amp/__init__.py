"""Floor 3: mixed precision. `rules.py` is the table of cast rules, `core` what a rule is."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
