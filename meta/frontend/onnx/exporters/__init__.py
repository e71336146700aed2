"""Exporters of base operators, by family; `onnx/export/registry.py` says how they are written."""

from importlib import import_module
from pkgutil import iter_modules

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
