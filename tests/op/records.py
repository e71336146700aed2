"""The `OpCase` records of the family files in this folder; no family is listed by hand."""

from pathlib import Path

from meta.testing.records import load_cases

CASES = load_cases(Path(__file__).parent)
