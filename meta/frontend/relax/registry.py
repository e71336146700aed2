"""The registry of Relax's converters, which the families in `converters/` fill.

Names are TVM's without the leading "relax.", as "nn.conv2d". Besides arrays and symbols, positional
arguments may be numbers, text, `Shape`s, tuples of these, and None for `null_value`. To convert a
further operator, write a function in the family file of `converters/` that fits (see
`meta.frontend.core.converter`).
"""

from __future__ import annotations

from meta.base.errors import FormatError
from meta.frontend.core import Converters

relax = Converters("relax")
ONLY_LOOPS = "of a function in TIR only loops are left, which are not converted"


class RelaxError(FormatError):
    """A Relax program that cannot be converted."""
