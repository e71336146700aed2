"""The whole matrix (`meta.testing.matrix`), in parallel: a unit is an operator on a dialect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from meta.base.device import Device
from meta.base.registry import OPERATORS
from meta.testing.case import OpCase
from meta.testing.matrix import FAIL, NO_KERNEL, Outcome, backends, outcomes
from meta.testing.records import load_cases
from meta.testing.workers import Lost, answer_all, in_processes

ALL = "all"
"""The dtype of an outcome that is not of one: the process died."""
Unit = tuple[str, str]
"""The names of an operator and of a dialect."""


@dataclass(frozen=True)
class SelftestPlan:
    """What is tested.

    Attributes
    ----------
    folder: of the records. device: where. dialects, dtypes: those that are looked at; empty: all.
    samples: how many of a case in each dtype, the first ones; 0: all.
    """

    folder: Path
    device: Device
    dialects: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    samples: int = 1

    def units(self, operators: Collection[str] = ()) -> list[Unit]:
        """Return what there is to test of some operators (empty: all), the longest first."""
        sizes: dict[str, int] = {}
        for case in load_cases(self.folder):
            if case.samples and (not operators or case.op in operators):
                size = len(case.dtypes or (1,)) * min(len(case.samples), self.samples or 10**6)
                sizes[case.op] = sizes.get(case.op, 0) + size
        found = []
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            known = backends(OPERATORS[name], self.device) or [NO_KERNEL]
            found += [(name, d) for d in known if not self.dialects or d in self.dialects]
        return found


def selftest(
    plan: SelftestPlan, units: Sequence[Unit], jobs: int, timeout: float
) -> Iterator[tuple[Unit, list[Outcome]]]:
    """Iterate over the units as they are done, with their outcomes.

    jobs: processes; 0: this one, which a crash of a kernel ends. timeout: seconds of one unit.
    """
    if jobs == 0:
        cases = load_cases(plan.folder)
        yield from ((unit, _outcomes(plan, cases, unit)) for unit in units)
        return
    for unit, answer in in_processes(units, serve, (plan,), jobs, timeout):
        if isinstance(answer, Lost):
            op, dialect = unit
            answer = [Outcome(op, dialect, ALL, FAIL, answer.why)]
        yield unit, answer


def serve(connection: Connection, plan: SelftestPlan) -> None:
    """Answer units in a process of its own, until the device is broken."""
    torch.set_num_threads(1)
    cases = load_cases(plan.folder)

    def answer(unit: Unit) -> tuple[list[Outcome], bool]:
        found = _outcomes(plan, cases, unit)
        return found, not any(o.state == FAIL for o in found) or _is_usable(plan.device)

    answer_all(connection, answer)


def _outcomes(plan: SelftestPlan, cases: list[OpCase], unit: Unit) -> list[Outcome]:
    op, dialect = unit
    own = [case for case in cases if case.op == op]
    return list(outcomes(own, dialect, plan.device, plan.dtypes, plan.samples))


def _is_usable(device: Device) -> bool:
    """Whether kernels still run: an illegal access breaks a process's CUDA context for good."""
    try:
        return bool((torch.zeros((), device=str(device)) == 0).item())
    except RuntimeError:
        return False
