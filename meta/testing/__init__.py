"""Public test helpers: for the project's own tests and for those of operators and backends written
elsewhere.

`OpCase` describes an operator's expected behaviour as data; `opcheck` derives the checks from it.
"""

from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.testing.case import B, C, F, I, OpCase, error, refusals, sample
from meta.testing.compare import check, check_type, numeric_gradient
from meta.testing.data import get_testable_devices, one_hot_torch, randint, randn, randn_torch
from meta.testing.derivatives import check_grads
from meta.testing.opcheck import check_case
from meta.testing.run import run_infer_type, run_vm_model, with_dialect

__all__ = [
    "B",
    "C",
    "F",
    "I",
    "OpCase",
    "check",
    "check_case",
    "check_grads",
    "check_type",
    "error",
    "get_testable_devices",
    "numeric_gradient",
    "one_hot_torch",
    "randint",
    "randn",
    "randn_torch",
    "refusals",
    "run_infer_type",
    "run_vm_model",
    "sample",
    "with_dialect",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.testing", name, __all__)
