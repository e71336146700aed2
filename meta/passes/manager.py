"""Runs passes in order and adds what every pass should have: verification, timing, history,
printing and fuel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from meta.base import config
from meta.base.errors import IRError
from meta.ir import Module, text, verify

Pass = Callable[[Module], Module]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did: its name, its duration in seconds, and the module it returned."""

    name: str
    seconds: float
    module: Module

    def __str__(self) -> str:
        return f"{self.name:20s} {self.seconds * 1e3:8.2f} ms"


class Pipeline:
    """A list of passes that one can read.

    Parameters
    ----------
    passes: functions Module -> Module, applied in order; bind options with `functools.partial`.

    After a call, ``history`` has one record per pass that ran. With META_VERIFY the module is
    verified after each pass, with META_DEBUG it is printed to stderr, and META_FUEL=n runs the
    first n passes of the process only.
    """

    fuel_used = 0

    def __init__(self, *passes: Pass) -> None:
        self.passes = passes
        self.history: list[PassRecord] = []

    def __call__(self, module: Module) -> Module:
        self.history = [PassRecord("input", 0.0, module)]
        limit, checked, shown = (config.get(k) for k in ("META_FUEL", "META_VERIFY", "META_DEBUG"))
        for step in self.passes:
            if 0 <= limit <= Pipeline.fuel_used:
                break
            Pipeline.fuel_used += 1
            started = time.perf_counter()
            module = step(module)
            record = PassRecord(pass_name(step), time.perf_counter() - started, module)
            self.history.append(record)
            if shown:
                print(f"# after {record}\n{text(module)}", file=sys.stderr)
            if checked:
                _verify(module, record.name)
        return module


def _verify(module: Module, name: str) -> None:
    try:
        verify(module, typed=True)
    except IRError as error:
        error.note(f"found after {name}")
        raise


def pass_name(step: Pass) -> str:
    """Return the name of a pass, also of one with bound options."""
    inner = step.func if isinstance(step, partial) else step
    return getattr(inner, "__name__", type(inner).__name__)
