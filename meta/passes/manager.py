"""Runs passes in order and adds what every pass should have: verification, timing, history,
printing, dumping and fuel.

``META_DUMP_IR=DIR`` writes the program after each pass. Each run of a pipeline has a folder of its
own, ``DIR/0000``, ``DIR/0001``, ..., also where several processes write to one DIR. The files are
read back with `meta.ir.parse`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from meta.base import config
from meta.base.errors import IRError
from meta.base.files import replacing, writing
from meta.base.progress import bar
from meta.ir import Module, text, verify


class Dump:
    """The files of one run of a pipeline: ``000-input.meta``, ``001-infer_type.meta``, ..."""

    def __init__(self, parent: str) -> None:
        """Make the folder; FileError if that cannot be done."""
        with writing(parent):
            self.folder = _new_folder(Path(parent))
        self._numbers = count()

    def write(self, name: str, seconds: float, module: Module) -> Path:
        """Write what a pass returned, all or nothing; return the file. FileError if it cannot."""
        path = self.folder / f"{next(self._numbers):03d}-{name}.meta"
        content = f"# pass: {name}\n# seconds: {seconds:.6f}\n\n{text(module)}\n"
        with replacing(path) as part:
            part.write_text(content, encoding="utf-8")
        return path


def _new_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(p.name) for p in parent.iterdir() if p.name.isdecimal()]
    for number in count(max(taken, default=-1) + 1):
        folder = parent / f"{number:04d}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue  # another process was faster
        return folder
    raise AssertionError("numbers do not end")


Pass = Callable[[Module], Module]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did: its name, its duration in seconds, and the module it returned.

    >>> pipeline = meta.passes.Pipeline(meta.passes.dead_code)
    >>> module = pipeline(meta.ir.parse('''
    ... func @main(%x: float32[2]) -> float32[2] { %y: float32[2] = exp(%x) return %x }'''))
    >>> record = pipeline.history[-1]
    >>> record.name, record.module is module, record.seconds > 0
    ('dead_code', True, True)
    """

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
    a file, and META_FUEL=n runs the first n passes of the process only.

    >>> pipeline = meta.passes.Pipeline(meta.passes.infer_type, meta.passes.dead_code)
    >>> print(pipeline(meta.ir.parse('''
    ... func @main(%x: float32[2]) { %y = exp(%x) %z = log(%x) return %z }''')))
    func @main(%x: float32[2]) -> float32[2] {
      %z: float32[2] = log(%x)
      return %z
    }
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
