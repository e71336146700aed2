"""Collects the `OpCase` records of the family files in this folder; no family is listed by hand."""

import importlib
from pathlib import Path

from meta.testing.case import OpCase

FAMILIES = sorted(
    p.stem
    for p in Path(__file__).parent.glob("*.py")
    if p.stem[:5] != "test_" and p.stem != "records"
)
CASES: list[OpCase] = [
    case for name in FAMILIES for case in importlib.import_module(f"tests.op.{name}").CASES
]
