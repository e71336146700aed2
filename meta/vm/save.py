"""`save`: an executable in a folder; `load.py` reads it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from meta.base.errors import ArgumentError
from meta.dialect.core import compile_together
from meta.runtime.tensor_file import write_tensors
from meta.vm.aliasing import summaries
from meta.vm.convention import convention_to_json
from meta.vm.folder import MANIFEST, write_folder

if TYPE_CHECKING:
    from meta.vm.executable import Executable

ARRAYS = "arrays.safetensors"
"""Parameters and running statistics, by their number among the executable's arrays."""


def save(executable: Executable, folder: str | os.PathLike[str]) -> None:
    """Write an executable to a folder, which is made; see `Executable.save`."""
    target = Path(folder).resolve()
    if not _replaceable(target):
        raise ArgumentError(
            f"{target} holds something else than a compiled program",
            expected="a new folder, or one that was saved to before",
        )
    _check_sharing(executable)
    _check_kernels(executable)
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


def _replaceable(target: Path) -> bool:
    """Whether nothing is lost with what is there: nothing, a program of ours, or an empty folder.

    Another writer may replace the folder meanwhile, and remove what it replaced file by file: only
    what is still there after it was read counts.
    """
    while True:
        try:
            folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False
        try:
            names = os.listdir(folder)
            if not names or MANIFEST in names:
                return True
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(folder), os.stat(target)):
                    return False
        finally:
            os.close(folder)


def _check_kernels(executable: Executable) -> None:
    """Compile again what the cache has lost; ArgumentError for a kernel that came from a file, the
    program cache's or a saved one's, which is gone.
    """
    compile_together(executable.envs)
    for env in executable.envs:
        if env.artifact is not None and not env.artifact.file.is_file():
            raise ArgumentError(
                "a compiled kernel of this program is no longer on disk",
                expected=env.artifact.file,
                hint="compile the program again; one that was loaded is saved before its folder is "
                "removed",
            )


def _check_sharing(executable: Executable) -> None:
    """Raise ArgumentError for memory of several arrays that is written: each is saved by itself."""
    first = len(executable.code.params) - executable.code.prepared - len(executable.arrays)
    places: dict[int, list[int]] = {}
    for i, array in enumerate(executable.arrays):
        if array.size:
            places.setdefault(array.torch().untyped_storage().data_ptr(), []).append(first + i)
    written = summaries(executable.code)[executable.code.entry].written
    for shared in places.values():
        if len(shared) > 1 and not written.isdisjoint(shared):
            names = ", ".join(f"%{executable.code.params[i][0]}" for i in shared)
            raise ArgumentError(
                "arrays that share memory cannot be saved with a program that writes to them",
                found=names,
                hint="make them one array of the model, or copies",
            )
