"""Operators that say that they commute do: exchanging two arguments changes no element."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.op.core import Op

COMMUTATIVE = [name for name in OPERATORS if OPERATORS[name].commutative]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, -3.5, 1e30, 1e-30, float("inf"), float("-inf"), float("nan")]
INTEGERS = [0, 1, -1, 7, 2**31 - 1, -(2**31)]


def operands(op: Op) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pairs of numbers that are hard cases."""
    if op.name.startswith("bitwise"):
        values = torch.tensor(INTEGERS, dtype=torch.int32)
    else:
        values = torch.tensor(SPECIAL)
    return values.repeat(len(values)), values.repeat_interleave(len(values))


@pytest.mark.parametrize("name", COMMUTATIVE)
def test_arguments_may_be_exchanged(name: str) -> None:
    op = OPERATORS[name]
    a, b = map(meta.array, operands(op))
    with only("torch"):
        one, other = op(a, b).torch(), op(b, a).torch()
    # Zeros have their sign; which nan it is, is left open.
    assert torch.equal(one.isnan(), other.isnan())
    assert torch.equal(one[~one.isnan()], other[~other.isnan()])
    assert torch.equal(one[~one.isnan()].signbit(), other[~other.isnan()].signbit())


def test_those_that_do_not_commute_do_not_say_so() -> None:
    assert {"add", "multiply", "hypot", "bitwise_xor", "logical_or"} <= set(COMMUTATIVE)
    others = {"subtract", "divide", "pow", "less", "matmul", "bitwise_left_shift"}
    assert not others & set(COMMUTATIVE)
    # Of two zeros they return the one that stands first, or second.
    assert not {"maximum", "minimum", "fmax", "fmin"} & set(COMMUTATIVE)
