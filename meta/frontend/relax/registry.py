"""The registry of Relax's converters, which the families in `converters/` fill.

Names are TVM's without the leading "relax.", as "nn.conv2d"; a tensor expression that an importer
of ours has marked (see `tensor_expressions.py`) is "te.pad", and what the one of PyTorch calls
beside Relax (see `walker.py`) "torch.embedding". Besides arrays and symbols, positional
arguments may be numbers, text, `Shape`s, tuples of these, and None for `null_value`. To convert a
further operator, write a function in the family file of `converters/` that fits (see
`meta.frontend.core.converter`).
"""

from __future__ import annotations

from meta.base.errors import FormatError
from meta.frontend.core import Converters

relax = Converters("relax")


class RelaxError(FormatError):
    """A Relax program that cannot be converted."""
