"""Programs as files, one per pass: what ``META_DUMP_IR=DIR`` writes.

Each run of a pipeline has a folder of its own, ``DIR/0000``, ``DIR/0001``, ..., also where several
processes write to one DIR. The files are read back with `meta.ir.parse`.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from tempfile import mkstemp

from meta.base.files import writing
from meta.ir import Module, text


class Dump:
    """The files of one run of a pipeline: ``000-input.meta``, ``001-infer_type.meta``, ..."""

    def __init__(self, parent: str) -> None:
        """Make the folder; FileError if that cannot be done."""
        with writing(parent):
            self.folder = _new_folder(Path(parent))
        self._numbers = count()

    def write(self, name: str, seconds: float, module: Module) -> Path:
        """Write what a pass returned, all or nothing; return the file. FileError if it cannot."""
        path = self.folder / f"{next(self._numbers):03d}-{name}.meta"
        content = f"# pass: {name}\n# seconds: {seconds:.6f}\n\n{text(module)}\n"
        with writing(path):
            descriptor, part = mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(content)
                os.replace(part, path)
            finally:
                Path(part).unlink(missing_ok=True)
        return path


def _new_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(p.name) for p in parent.iterdir() if p.name.isdecimal()]
    for number in count(max(taken, default=-1) + 1):
        folder = parent / f"{number:04d}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue  # another process was faster
        return folder
    raise AssertionError("numbers do not end")
