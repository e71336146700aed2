"""What the benchmarks write: their progress and conditions, a table for a terminal, a section of a
page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "performance.md", DOCS / "measurements.md")
"""The pages of which the benchmarks write sections."""
DISTRIBUTED = DOCS / "distributed.md"
END = "<!-- end -->"
TEXT_COLUMNS = 2
"""Columns of text that a table begins with; the others are figures."""


def say(text: str) -> None:
    """Print a line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def has_compiler() -> bool:
    """Whether there is the C++ compiler that torch.compile needs on the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "c++", "clang++"))


def conditions(compiler: bool, figures: str) -> str:
    """Return what the figures depend on, in one line."""
    note = "" if compiler else "; torch.compile not measured (left out, or no C++ compiler)"
    return (
        f"{_processor()}, {torch.get_num_threads()} thread(s); torch {torch.__version__}, "
        f"TVM {version('apache-tvm')}, Python {platform.python_version()}; "
        f"{date.today().isoformat()}; {figures}{note}"
    )


def conditions_cuda(figures: str) -> str:
    """Return what figures of the current CUDA device depend on, in one line."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()[0]
    return (
        f"{torch.cuda.get_device_name()}, driver {driver}, CUDA {torch.version.cuda}; torch "
        f"{torch.__version__}, TVM {version('apache-tvm')}, Python {platform.python_version()}; "
        f"{date.today().isoformat()}; {figures}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write(
    options: argparse.Namespace,
    conditions: str,
    figures: dict[str, Any],
    table: list[list[str]],
    notes: Sequence[str] = (),
    begin: str = "",
) -> None:
    """Print one JSON object or a table, as `command.add_outputs` has it, and with --markdown
    replace the section of a page after the mark ``begin``. notes: what follows on the
    table.
    """
    if options.json:
        print(json.dumps({"conditions": conditions, **figures}))
    else:
        print("\n\n".join([conditions, plain(table), *(["\n".join(notes)] if notes else [])]))
    if begin and options.markdown:
        section = "\n\n".join([f"{conditions}.", table_in_markdown(table), *notes])
        replace_section(begin, f"{section}\n")


def plain(table: list[list[str]]) -> str:
    """Return a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < TEXT_COLUMNS else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def table_in_markdown(table: list[list[str]]) -> str:
    """Return a table for a page."""
    head, *lines = table
    rule = ["---"] * TEXT_COLUMNS + ["---:"] * (len(head) - TEXT_COLUMNS)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *lines))


def replace_section(begin: str, section: str, *pages: Path) -> None:
    """Put the section between the mark ``begin`` and the next `END` of the page that has the mark,
    of ``pages``, else of `PAGES`.

    Lines of text are broken at 100 columns, rows of tables are not.
    """
    lines = [line if line.startswith("|") else fill(line, 100) for line in section.split("\n")]
    section = "\n".join(lines)
    for page in pages or PAGES:
        before, found, rest = page.read_text().partition(begin)
        _, end, after = rest.partition(END)
        if found and end:
            page.write_text(f"{before}{begin}\n\n{section}\n{END}{after}")
            return
    raise SystemExit(f"no page has the marks {begin!r} and {END!r}")
