"""How many files of meta an eager call enters: who reads what a call does reads these."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import meta
from meta import op
from meta.dialect import only

PACKAGE = str(Path(meta.__file__).parent)
MOST = 14
"""Files that a call enters whose kernel is decided, for these or for other shapes."""
MOST_DECIDING = 47
"""Files that a call enters of which the kernel is still to be decided."""


def entered(call: Callable[[], object]) -> set[str]:
    """Return the files of meta of which a call runs a function."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


X, Y, TALL = meta.ones((2, 3)), meta.ones((2, 3)), meta.ones((5, 3))
TRACKED = meta.ones((2, 3))
TRACKED.requires_grad = True
CALLS: dict[str, Callable[[], object]] = {
    "two arrays": lambda: op.add(X, Y),
    "a method": lambda: X + Y,
    "a number": lambda: X + 2.0,
    "one array": lambda: op.exp(X),
    "an attribute": lambda: op.softmax(X, axis=1),
    "named arguments": lambda: op.sum(X, axis=0, keepdims=True),
    "a view": lambda: op.reshape(X, (3, 2)),
    "a matrix product": lambda: op.matmul(X, TALL.T),
    "for a gradient": lambda: op.add(TRACKED, Y),
    "of two dtypes": lambda: op.add(X, op.astype(Y, "float64")),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_made_before(name: str) -> None:
    call = CALLS[name]
    with only("torch"):
        for _ in range(3):
            call()
        found = entered(call)
    assert len(found) <= MOST, sorted(found)


def test_a_call_of_new_shapes() -> None:
    with only("torch"):
        op.subtract(X, Y)
        found = entered(lambda: op.subtract(TALL, TALL))
    assert len(found) <= MOST, sorted(found)


def test_a_call_that_decides() -> None:
    op.multiply(X, Y)  # what is read of the family's kernels is read
    found = entered(lambda: op.add(op.astype(X, "float64"), 1.0))
    assert len(found) <= MOST_DECIDING, sorted(found)
