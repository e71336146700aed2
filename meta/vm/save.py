"""`save`: an executable in a folder; `load.py` reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from meta.base.errors import ArgumentError
from meta.runtime.tensor_file import write_tensors
from meta.vm.convention_json import convention_to_json
from meta.vm.folder import MANIFEST, write_folder

if TYPE_CHECKING:
    from meta.vm.executable import Executable

ARRAYS = "arrays.safetensors"
"""Parameters and running statistics, by their number among the executable's arrays."""


def save(executable: Executable, folder: str | os.PathLike[str]) -> None:
    """Write an executable to a folder, which is made; see `Executable.save`."""
    target = Path(folder)
    if target.exists() and not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise ArgumentError(
            f"{target} holds something else than a compiled program",
            expected="a new folder, or one that was saved to before",
        )
    arrays = {str(i): array.torch() for i, array in enumerate(executable.arrays)}
    write_folder(
        target,
        executable.code,
        executable.envs,
        executable.device,
        executable.module,
        more=convention_to_json(executable.convention),
        files={ARRAYS: lambda path: write_tensors(path, arrays)},
    )
