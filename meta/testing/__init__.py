"""Public test helpers: for the project's own tests and for those of operators and backends written
elsewhere.

`OpCase` describes an operator's expected behaviour as data; `opcheck` derives the checks from it.
"""

from meta.testing.case import B, C, F, I, OpCase, error, refusals, sample
from meta.testing.compare import check, check_type, numeric_gradient
from meta.testing.opcheck import check_case, get_testable_devices

__all__ = [
    "B",
    "C",
    "F",
    "I",
    "OpCase",
    "check",
    "check_case",
    "check_type",
    "error",
    "get_testable_devices",
    "numeric_gradient",
    "refusals",
    "sample",
]
