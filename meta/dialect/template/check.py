"""Is generated source good source? What is read here, and what the target's compiler says."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from meta.base.errors import BackendError
from meta.dialect.template.launcher import program_of
from meta.dialect.template.pieces import Source
from meta.dialect.template.target import TARGETS


@dataclass(frozen=True)
class Checked:
    """What is known of a source: its kernels, and whether a compiler took it; if none did, why."""

    kernels: tuple[str, ...]
    compiled: bool
    reason: str

    def __str__(self) -> str:
        named = ", ".join(self.kernels)
        return f"kernels {named}; {'compiled' if self.compiled else 'not compiled'}: {self.reason}"


def check(source: Source) -> Checked:
    """Read a source's host code, and compile the whole with the target's compiler, nvcc or hipcc,
    where that is installed. Needs no device.

    Raises HostError for host code that cannot be read, and BackendError with the compiler's words
    for source that it refuses.
    """
    program = program_of(source.function, source.call, source.title)
    target, kernels = TARGETS[source.target], tuple(program.kernels)
    compiler = shutil.which(target.compiler)
    if compiler is None:
        return Checked(kernels, False, f"{target.compiler} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        file, made = Path(folder) / "source.cpp", Path(folder) / "source.o"
        file.write_text(source.function, "utf-8")
        command = [compiler, *target.options, str(file), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BackendError(
            f"{target.compiler} refuses generated source",
            op=source.title,
            found=(done.stderr or done.stdout)[:2000],
        )
    return Checked(kernels, True, target.compiler)
