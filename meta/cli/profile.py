"""``python -m meta profile``: compile a model or a program, run it and measure each instruction."""

from __future__ import annotations

import argparse

from meta.cli.table import show
from meta.cli.target import add_arguments, compiled, made_up


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "profile",
        help="run a model or program text and measure each instruction",
        description="Compile a model or program text, run it on made-up arguments (normally "
        "distributed floats, zeros of other dtypes) and show the time of each instruction.",
    )
    add_arguments(parser)
    parser.add_argument("--repeat", type=int, default=10, help="measured runs; default 10")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the last run for chrome://tracing or Perfetto"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the measurements."""
    executable, types = compiled(options)
    found = executable.profile(*made_up(types, executable.device), repeat=options.repeat)
    if options.trace:
        found.chrome_trace(options.trace)
    record = {
        "target": options.target,
        "inputs": list(map(str, types)),
        "device": str(executable.device),
        "repeat": found.repeat,
        "seconds": found.seconds,
        "instructions": found.records(),
    }
    show(options, record, lambda _: found.table(top=None))
    return 0
