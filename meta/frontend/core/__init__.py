"""What importers share: the registry of converters and how a converter sees its call.

Converting is tracing. `ImportedModel.forward` interprets the foreign program under a trace, once
per signature of the inputs, and every operator is a call of its converter (`converter.py`). So
shapes are those of the arguments, the mode (training or not) is known, and what follows from
constants alone is computed on the way and known to converters. Where TVM's graph languages compute
something else than base operators do, `arithmetic.py` says it; `operators.py` has what both compute
alike. ``unsupported`` of a source walks a program first, as far as main reaches, and lists at once
what cannot be converted.
"""

from meta.frontend.core.constant_folding import constant_value, fold_constants, leaves
from meta.frontend.core.converter import (
    BAD_ATTRIBUTES,
    CallSite,
    Converter,
    Converters,
    Failure,
    Unconvertible,
    conversion_error,
    grouped,
)
from meta.frontend.core.imported_model import ImportedModel, active_trace

__all__ = [
    "BAD_ATTRIBUTES",
    "CallSite",
    "Converter",
    "Converters",
    "Failure",
    "ImportedModel",
    "Unconvertible",
    "active_trace",
    "constant_value",
    "conversion_error",
    "fold_constants",
    "grouped",
    "leaves",
]
