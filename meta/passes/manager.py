"""Runs passes in order and adds what every pass should have: verification, timing, history,
printing, dumping and fuel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from meta.base import config
from meta.base.errors import IRError
from meta.base.progress import bar
from meta.ir import Module, text, verify
from meta.passes.dump import Dump

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
    verified after each pass, with META_DEBUG it is printed to stderr, META_DUMP_IR=DIR writes it to
    a file (see `meta.passes.dump`), and META_FUEL=n runs the first n passes of the process only.
    """

    fuel_used = 0

    def __init__(self, *passes: Pass) -> None:
        self.passes = passes
        self.history: list[PassRecord] = []

    def __call__(self, module: Module) -> Module:
        self.history = [PassRecord("input", 0.0, module)]
        limit, checked, folder = (
            config.get(k) for k in ("META_FUEL", "META_VERIFY", "META_DUMP_IR")
        )
        dump = Dump(folder) if folder else None
        _show(self.history[0], dump)
        with bar(len(self.passes), "passes", delay=1.0) as progress:
            for step in self.passes:
                if 0 <= limit <= Pipeline.fuel_used:
                    break
                Pipeline.fuel_used += 1
                progress.set_postfix_str(pass_name(step), refresh=False)
                started = time.perf_counter()
                module = step(module)
                record = PassRecord(pass_name(step), time.perf_counter() - started, module)
                self.history.append(record)
                _show(record, dump)
                if checked:
                    _verify(module, record.name)
                progress.update()
        return module

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(map(pass_name, self.passes))})"


def _show(record: PassRecord, dump: Dump | None) -> None:
    """Print and write what a pass returned, as far as that is asked for."""
    debug = config.get("META_DEBUG")
    if debug and record.name != "input":
        print(f"# after {record}\n{text(record.module)}", file=sys.stderr)
    if dump is not None:
        path = dump.write(record.name, record.seconds, record.module)
        if debug:
            print(f"# written to {path}", file=sys.stderr)


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
