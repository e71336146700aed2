"""Rules by which `simplify` replaces a call by something cheaper, by subject.

To add one, write a function in the file of its subject and attach it to its operators with
``@RULES.rule(...)``. A rule holds for every value of the dtypes that it accepts, NaN, infinities
and signed zeros included (the sign and payload of a NaN do not count); its docstring says why where
that is not plain. What would round differently is no simplification.
"""

from meta.passes.rules import arithmetic, casts, shapes
from meta.passes.rules.table import RULES, Rules, RuleSite

__all__ = [
    "RULES",
    "RuleSite",
    "Rules",
    "arithmetic",
    "casts",
    "shapes",
]
