"""Integers that no float64 is are not taken for another number."""

from __future__ import annotations

import pytest

from meta.ir import parse, structural_equal
from meta.passes import canonicalize, simplify


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("int64", 2**53 + 1), ("int64", 2**63 - 1), ("uint64", 2**63 - 1), ("uint64", 2**64 - 1)],
)
def test_large_integers(dtype: str, number: int) -> None:
    module = parse(f"""func @main(%x: {dtype}[2]) -> {dtype}[2] {{
        %c: {dtype}[2] = full((2,), {number}, dtype="{dtype}")
        %y: {dtype}[2] = multiply(%x, %c)
        %z: {dtype}[2] = subtract(%y, %c)
        return %z
    }}""")
    assert structural_equal(simplify(module), module)
    assert structural_equal(canonicalize(module), module)
