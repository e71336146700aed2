"""The matrix of operators, dialects and dtypes: which kernels are right, which are refused and why.

`outcomes` checks an operator on one dialect by its `OpCase` records, `cells` sums up. A sample's
dtype is the one under test or, if its tensors do not depend on that, the first tensor's (without
tensors, the result's).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from meta.base.device import Device
from meta.base.dtype import FROM_TORCH
from meta.dialect import only
from meta.dialect.core import candidates
from meta.dialect.core.preference import current
from meta.ir.types import TensorType, TupleType
from meta.op.core import Op, tree
from meta.testing.case import OpCase, Sample
from meta.testing.opcheck import check_dialect, explained
from meta.testing.shapes import inferred, reshaped

PASS, REFUSED, FAIL = "pass", "refused", "FAIL"
NO_KERNEL = "no kernel"
"""Stands for a dialect where a call needs none: views, and what is known from the types."""


@dataclass(frozen=True)
class Outcome:
    """What became of one sample: ``state`` is PASS, REFUSED or FAIL, ``reason`` says why not."""

    op: str
    dialect: str
    dtype: str
    state: str
    reason: str = ""


@dataclass
class Cell:
    """The outcomes of an operator on a dialect in a dtype.

    Attributes
    ----------
    state: FAIL if a sample fails, else PASS if one passes, else REFUSED. passed: how many do.
    refused, failed: the reasons, by how many samples have them.
    """

    op: str
    dialect: str
    dtype: str
    passed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """What the cell says in one word."""
        return FAIL if self.failed else PASS if self.passed else REFUSED

    def record(self) -> dict[str, Any]:
        """Return the cell as values that JSON has."""
        return {"state": self.state, **asdict(self)}


def cells(outcomes: Iterable[Outcome]) -> list[Cell]:
    """Return the cells of outcomes, sorted by operator, dialect and dtype."""

    def place(one: Outcome) -> tuple[str, str, str]:
        return one.op, one.dialect, one.dtype

    found = []
    for key, members in groupby(sorted(outcomes, key=place), place):
        cell = Cell(*key)
        for one in members:
            if one.state == PASS:
                cell.passed += 1
            else:
                reasons = cell.refused if one.state == REFUSED else cell.failed
                reasons[one.reason] = reasons.get(one.reason, 0) + 1
        found.append(cell)
    return found


def backends(op: Op, device: Device) -> list[str]:
    """Return the names of the usable dialects that implement an operator on a device."""
    return [
        d.dialect.name
        for d in candidates(op, current(), device)
        if d.dialect.refusal(device) is None
    ]


def outcomes(
    cases: Iterable[OpCase],
    dialect: str,
    device: Device,
    dtypes: Collection[str] = (),
    most: int = 1,
) -> Iterator[Outcome]:
    """Check cases on one dialect (or NO_KERNEL, for operators without any) and a device.

    dtypes: those that are looked at; empty: all. most: the number of samples that are taken of a
    case in each dtype, the first ones; 0: all, and those of other shapes (`meta.testing.shapes`).
    """
    for case in cases:
        if device.kind not in case.devices:
            continue
        taken: dict[str, int] = {}
        samples = case.samples if most else [*case.samples, *reshaped(case)]
        for one, under_test, dtype in _of_dtypes(case, samples):
            if (dtypes and dtype not in dtypes) or 0 < most <= taken.get(dtype, 0):
                continue
            taken[dtype] = taken.get(dtype, 0) + 1
            yield _outcome(case, one, under_test, dtype, dialect, device)


def _of_dtypes(case: OpCase, samples: Iterable[Sample]) -> Iterator[tuple[Sample, str, str]]:
    """Iterate over samples with the dtype under test and the dtype that counts."""
    under_test = case.dtypes or ("float32",)
    for one in samples:
        first = [t.dtype for t in tree.flatten(one.make("float32"))[0]]
        if first != [t.dtype for t in tree.flatten(one.make("float64"))[0]]:
            yield from ((one, dtype, dtype) for dtype in under_test)
        elif first:
            yield one, under_test[0], FROM_TORCH[first[0]]
        else:
            type_ = inferred(case, one, under_test[0])
            if isinstance(type_, TupleType) and type_.fields:
                type_ = type_.fields[0]
            dtype = type_.dtype if isinstance(type_, TensorType) else "none"
            yield one, under_test[0], dtype


def _outcome(
    case: OpCase, one: Sample, under_test: str, dtype: str, dialect: str, device: Device
) -> Outcome:
    where = dialect
    try:
        chosen = "torch" if dialect == NO_KERNEL else dialect
        with only(chosen):
            found = explained(case, one, under_test, str(device))
        own = [c for c in found if c.dialect_op.dialect.name == dialect]
        if not own:
            where = NO_KERNEL
        elif all(c.env is None for c in own):
            return Outcome(case.op, dialect, dtype, REFUSED, own[0].reason)
        check_dialect(case, one, under_test, chosen, str(device))
    except Exception as error:  # of a kernel, its compiler or its library: this is what is tested
        text = f"{type(error).__name__}: {error}".strip()
        return Outcome(case.op, where, dtype, FAIL, f"{case.op}({one}) in {under_test}: {text}")
    return Outcome(case.op, where, dtype, PASS)
