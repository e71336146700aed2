"""Damages Relay programs and parameter files, and checks that reading them fails cleanly.

    python -m tools.fuzz_relay --cases 100000 --seed 1 [--json]
    python -m tools.fuzz_relay --seed 1 --case 4711 [--save FILE]     # one case again

A case is a file of the corpus after one to four mutations, all of it decided by seed and index. It
passes if reading it gives a result or an error of `FormatError`'s family, in less than 2 s of
processor time, with less than 200 MB added to the peak memory of the process; and if a program that
could be read, printed as text, reads back equal. Cases run in a process of their own: one that ends
it (a crash) is reported like any other.

To add a mutation, write a function in one of the lists of `tools/relay_mutations.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from meta.base.errors import FormatError
from meta.base.progress import bar
from meta.frontend.relay.ast import Module
from meta.frontend.relay.params import MAGIC, read_params
from meta.frontend.relay.read import read
from meta.frontend.relay.text import parse_text
from meta.testing.workers import Lost, answer_all, in_processes
from tools.processes import exit_with
from tools.relay_mutations import mutate
from tools.relay_text import difference, print_text

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "relay" / "fuzz"
SECONDS, MEGABYTES = 2.0, 200.0
_GIVE_UP = 60.0  # seconds after which a case is interrupted
_ADDRESS_SPACE = 4 << 30  # what a process may ask for on top of what it has


@dataclass
class Failure:
    """A case that did not pass: its index, the corpus file it comes from, what happened."""

    index: int
    file: str
    why: str

    def __str__(self) -> str:
        return f"case {self.index} ({self.file}): {self.why}"


def corpus(folder: Path) -> list[tuple[str, bytes]]:
    """Return the files of a folder by name."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    if not files:
        raise SystemExit(f"{folder} has no files")
    return [(p.name, p.read_bytes()) for p in files]


def case(files: list[tuple[str, bytes]], seed: int, index: int) -> tuple[str, bytes]:
    """Return the name of the file that a case comes from, and its content."""
    rng = random.Random(f"{seed}:{index}")
    name, data = rng.choice(files)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = mutate(rng, data, [d for _, d in files])
    return name, data


class Unfaithful(Exception):
    """A program whose text does not read back to it."""


def read_any(data: bytes) -> Any:
    """Read what is a program or a parameter file."""
    return read_params(data) if data.startswith(MAGIC) else read(data)


def check_text(value: Any) -> None:
    """Print what was read, if it is a program, and read it again.

    Raises FormatError for what cannot be printed, Unfaithful for a text that is no longer the same
    program.
    """
    if not isinstance(value, Module):
        return
    text = print_text(value)
    try:
        where = difference(value, parse_text(text, "<printed>"))
    except FormatError as error:
        raise Unfaithful(f"its text cannot be read: {error}") from error
    if where is not None:
        raise Unfaithful(f"its text is another program: {where}")


def peak() -> float:
    """Return the peak memory of this process in MB.

    It is Linux's own figure: that of `getrusage` counts what the parent had when it forked.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def check(data: bytes, baseline: float) -> tuple[str | None, bool]:
    """Read a case; return why it fails, None if it passes, and whether it could be read.

    ``baseline`` is the peak memory of the process, in MB, before the first case.
    """
    start, was_read, seconds = time.process_time(), False, 0.0
    try:
        value = read_any(data)
        was_read, seconds = True, time.process_time() - start
        check_text(value)
    except FormatError as error:
        str(error)  # what a user sees has to be printable too
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}", was_read
    if not was_read:
        seconds = time.process_time() - start
    grown = peak() - baseline
    if seconds > SECONDS:
        return f"{seconds:.1f} s", was_read
    if grown > MEGABYTES:
        return f"{grown:.0f} MB", was_read
    return None, was_read


def _serve(connection: Connection, folder: Path, seed: int) -> None:
    """Answer the indices of cases by what `check` says of them; in a process of its own."""
    files = corpus(folder)
    for _, data in files:  # what is imported or built once does not count
        check(data, peak())
    baseline = peak()
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + _ADDRESS_SPACE, resource.RLIM_INFINITY))

    def answer(index: int) -> tuple[tuple[str | None, bool], bool]:
        nonlocal baseline
        outcome = check(case(files, seed, index)[1], baseline)
        if peak() - baseline > MEGABYTES:
            baseline = peak()  # reported once
        return outcome, True

    answer_all(connection, answer)


def run(folder: Path, seed: int, cases: int) -> tuple[list[Failure], int]:
    """Run so many cases; return those that failed, and how many files could be read."""
    files, failures, was_read = corpus(folder), list[Failure](), 0
    with bar(cases, "cases") as progress:
        for index, found in in_processes(range(cases), _serve, (folder, seed), 1, _GIVE_UP):
            why, read_it = (found.why, False) if isinstance(found, Lost) else found
            was_read += read_it
            if why is not None:
                failures.append(Failure(index, case(files, seed, index)[0], why))
                progress.write(str(failures[-1]), file=sys.stderr)
            progress.update()
    return failures, was_read


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.fuzz_relay",
        description="Damage Relay programs and params; reading them has to fail cleanly.",
        epilog="Exit status: 0 all cases pass, 1 some do not, 2 bad usage, 130 interrupted.",
    )
    top.add_argument("--cases", type=int, default=1000, metavar="N", help="how many (1000)")
    top.add_argument("--seed", type=int, default=0, metavar="S", help="decides the cases (0)")
    top.add_argument("--case", type=int, metavar="I", help="run this one, with its traceback")
    top.add_argument("--save", type=Path, metavar="FILE", help="write the input of --case there")
    top.add_argument("--corpus", type=Path, default=CORPUS, metavar="DIR", help="files to damage")
    top.add_argument("--json", action="store_true", help="print one JSON object")
    return top


def _again(options: argparse.Namespace) -> int:
    name, data = case(corpus(options.corpus), options.seed, options.case)
    print(f"{name}, {len(data)} bytes: {data[:400]!r}")
    if options.save is not None:
        options.save.write_bytes(data)
    start = time.process_time()
    try:
        value = read_any(data)
        print(f"read: {type(value).__name__}")
        check_text(value)
    except FormatError as error:
        print(f"refused: {error}")
    print(f"{time.process_time() - start:.2f} s")
    return 0


def main() -> int:
    """Run the command."""
    options = parser().parse_args()
    if not options.corpus.is_dir():
        parser().error(f"{options.corpus} is no folder")
    if options.case is not None:
        return _again(options)
    failures, was_read = run(options.corpus, options.seed, options.cases)
    if options.json:
        found = [asdict(f) for f in failures]
        print(json.dumps({"cases": options.cases, "read": was_read, "failures": found}))
        return bool(failures)
    for failure in failures:
        print(failure)
    refused = options.cases - was_read - len(failures)
    print(
        f"{options.cases} cases of seed {options.seed}: {was_read} could be read, "
        f"{refused} were refused, {len(failures)} failed"
    )
    return bool(failures)


if __name__ == "__main__":
    exit_with(main)
