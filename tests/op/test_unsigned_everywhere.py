"""Every operator that takes int32 takes uint16 and uint32, or says why not.

The samples of all records, with their integers in these dtypes, beside the oracles in int64, of
whose results the low bits count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import TO_TORCH, limits
from meta.base.errors import MetaError, NumberOutOfRange
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.dialect.torch import unsigned
from meta.op.core import tree
from meta.op.linalg import GROUPED
from meta.testing import OpCase
from meta.testing.compare import check
from meta.testing.layout import called, of_tensors
from meta.testing.opcheck import dialects_of, tolerance
from tests.op.records import CASES

DTYPES = ("uint16", "uint32")
INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32),
)
VALUES = ("activation", "arithmetic", "elementwise", "linalg", "logic", "reduce", "scan", "sorting")
"""Families whose integers are values, and may be large."""
ORDERED = ("searchsorted",)
"""Operators of which a sample is in ascending order."""
REFUSES = {
    **dict.fromkeys((op.name for op in GROUPED), "offs must be integers"),
    "fixed_point_multiply": "x must be int32",
    "multi_tensor_increment": "signed integers",
    "non_max_suppression": "int32",
}
"""Operators that take int32 and not these, by what they say."""
OTHERWISE = ("dynamic_arange", "reinterpret")
"""Operators of which a sample makes no sense without its signs, or in another width."""

Leaves = list[torch.Tensor]


def integers(case: OpCase) -> list[tuple[Any, Leaves]]:
    """Return the samples of a case that have integers."""
    found = []
    for one in case.samples:
        leaves, structure = tree.flatten(one.make("float32"))
        if any(t.dtype in INTEGERS for t in leaves):
            found.append((structure, leaves))
    return found


WITH_INTEGERS = [
    pytest.param(case, id=f"{place}-{case.op}")
    for place, case in enumerate(CASES)
    if case.op not in OTHERWISE and integers(case)
]


def without_sign(case: OpCase, dtype: str, most: int) -> Iterator[tuple[Any, Leaves, Leaves]]:
    """Yield the samples with the magnitudes of their integers in a dtype, and the same in int64;
    also with what is as far below the largest number, where that stands for no place.
    """
    base, top = OPERATORS[case.op], int(limits(dtype).max)
    far = base.family in VALUES and base.indices is None and case.op not in ORDERED
    for structure, leaves in integers(case)[:most]:
        for turned in (False, True) if far else (False,):

            def wide(t: torch.Tensor, turned: bool = turned) -> torch.Tensor:
                if t.dtype not in INTEGERS:
                    return t
                small = t.long().abs() & top
                return top - small if turned else small

            numbers = [wide(t) for t in leaves]
            pairs = zip(leaves, numbers, strict=True)
            own = [n.to(TO_TORCH[dtype]) if t.dtype in INTEGERS else t for t, n in pairs]
            yield structure, own, numbers


def refused(call: Callable[..., Any], tensors: Leaves) -> bool:
    """Whether a call is refused with int32 in the place of int64."""
    try:
        call(*[meta.array(t.int() if t.dtype == torch.int64 else t) for t in tensors])
    except MetaError:
        return True
    return False


def check_beside_oracle(case: OpCase, dtype: str, dialect: str, most: int) -> None:
    for structure, own, numbers in without_sign(case, dtype, most):
        call = of_tensors(called(case), structure)
        with only(dialect):
            try:
                found = call(*[meta.array(t.clone()) for t in own])
            except MetaError as error:
                says = REFUSES.get(case.op, "(?!)")  # which matches nothing
                why = isinstance(error, NumberOutOfRange) or re.search(says, str(error))
                assert why or refused(call, numbers), str(error)
                continue
        copies = [t.double() if t.dtype.is_floating_point else t.clone() for t in numbers]
        expected = of_tensors(case.oracle, structure)(*copies)
        check(found, expected, *tolerance(case, "float32"), what=f"{dialect}.{case.op}{own}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", WITH_INTEGERS)
def test_on_torch(case: OpCase, dtype: str) -> None:
    check_beside_oracle(case, dtype, "torch", len(case.samples))


@pytest.mark.slow  # each sample is a kernel that is compiled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", WITH_INTEGERS)
def test_on_tvm(case: OpCase, dtype: str) -> None:
    if "tvm" in dialects_of(OPERATORS[case.op]):
        check_beside_oracle(case, dtype, "tvm", 3)


def test_the_lists_name_operators() -> None:
    """A list by which the torch dialect treats operators has no name that there is not."""
    listed = unsigned.AS_THEY_ARE | unsigned.MOVING | unsigned.WITHOUT_UINT64
    assert sorted(listed - set(OPERATORS)) == []
