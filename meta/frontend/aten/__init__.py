"""PyTorch's operators, ATen, become base operators: the converters, and what walks a graph."""

import meta.frontend.aten.converters  # noqa: F401  (registers them)
from meta.frontend.aten.registry import AtenError, aten

__all__ = ["AtenError", "aten"]
