"""Relax, the current TVM's graph IR. TVM is imported with this package."""

from meta.frontend.relax.model import RelaxModel, from_relax, operators
from meta.frontend.relax.values import RelaxError

__all__ = ["RelaxError", "RelaxModel", "from_relax", "operators"]
