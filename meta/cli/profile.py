"""``python -m meta profile``: compile a model or a program, run it and measure each instruction."""

from __future__ import annotations

import argparse

from meta.cli.table import show
from meta.cli.target import compile_target, random_arguments


def run(options: argparse.Namespace) -> int:
    """Print the measurements."""
    executable, types = compile_target(options)
    found = executable.profile(*random_arguments(types, executable.device), repeat=options.repeat)
    if options.trace:
        found.chrome_trace(options.trace)
    if options.html:
        executable.show(options.html, profile=found)
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
