"""Parse the command line, run one command, and turn users' errors into one message.

Exit status: 0 done, 1 the command found something wrong, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from meta.base import config
from meta.base.errors import MetaError
from meta.cli.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; ``argv`` is without the program's name."""
    options = parser().parse_args(argv)
    debug = False
    try:
        debug = config.get("META_DEBUG")
        status: int = command(options.run)(options)
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


def command(name: str) -> Callable[[Any], int]:
    """Return the function that runs a command, "module:function"; its imports happen now."""
    module, function = name.split(":")
    found: Callable[[Any], int] = getattr(importlib.import_module(module), function)
    return found
