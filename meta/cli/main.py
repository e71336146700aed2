"""Parse the command line, run one command, and turn users' errors into one message.

Exit status: 0 done, 1 the command found something wrong, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import meta
from meta.base import config
from meta.base.errors import MetaError
from meta.cli import cache, compile, env, listing, operators, profile, relay, selftest
from meta.cli.demo import command as demo

COMMANDS = (operators, listing, compile, profile, relay, env, cache, selftest, demo)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="python -m meta",
        description="Every tensor operator on the best backend at hand.",
        epilog="Exit status: 0 done, 1 something was found wrong, 2 bad input, 130 interrupted. "
        "META_* environment variables: see `python -m meta env`.",
    )
    top.add_argument("--version", action="version", version=f"meta {meta.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; ``argv`` is without the program's name."""
    options = parser().parse_args(argv)
    debug = False
    try:
        debug = config.get("META_DEBUG")
        status: int = options.run(options)
        sys.stdout.flush()  # a closed pipe shows here, not at the interpreter's exit
        return status
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. What is still buffered must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MetaError, OSError) as error:
        if debug:
            raise
        print(f"python -m meta {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
