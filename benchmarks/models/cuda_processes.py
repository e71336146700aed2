"""The processes in which models are measured on a GPU: one per contender and row, `cuda_worker`.

One that is started with ``wait`` stops twice: when its model is made, before it compiles, and when
it has compiled, before it is timed. So several can be made ready, or compile, at the same time:

    ready()      model and inputs are made
    go()         let it compile
    ready()      it has compiled
    measure()    let it go on to the end, from wherever it is
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from models.cuda_strangers import EVERY_ROW

BENCHMARKS = Path(__file__).parents[1]


class Process:
    """A contender of a row in a process of its own, with its caches in a folder.

    Parameters
    ----------
    flags: options for `cuda_worker`. wait: stop where others may go first. crowded: others compile
    at the same time.
    """

    def __init__(
        self,
        row: str,
        contender: str,
        folder: str,
        flags: Sequence[str],
        wait: bool = False,
        crowded: bool = False,
    ) -> None:
        self.row, self.contender = row, contender
        paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "META_CACHE_DIR": f"{folder}/meta",
            "META_TF32": str(int(EVERY_ROW[row].precision == "tf32")),
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        if crowded:  # each would start a process per core
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        command = [sys.executable, "-m", "models.cuda_worker", row, contender, *flags]
        # Errors of many at a time are kept apart; `measure` and `end` close the file.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open while it runs)
        self._process = subprocess.Popen(
            [*command, "--wait"] if wait else command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ready(self) -> None:
        """Wait until it stops the next time, or has failed."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def go(self) -> None:
        """Let it go on to where it stops next."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed: `measure` will say so
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def measure(self) -> dict[str, Any]:
        """Let it go on and end; return its record, which says ``failed`` if it did. What it wrote
        to stderr follows on this process's.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self.go()
        self.go()  # a line for each of its stops
        output = self._process.stdout.read()
        self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read().strip()
        self.end()
        if errors:
            print(f"{self.row} {self.contender}:\n{errors}", file=sys.stderr, flush=True)
        if self._process.returncode:
            last = errors.rpartition("\n")[2]
            return {"failed": f"exit status {self._process.returncode}: {last}"}
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def end(self) -> None:
        """End it, if it runs, and close what leads to it."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            assert file is not None
            with suppress(BrokenPipeError):  # a line may be left that it did not take
                file.close()
