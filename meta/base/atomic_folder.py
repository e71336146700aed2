"""Atomic folders: several files that appear complete, or not at all, and that replace only what was
written in the same way before.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meta.base.files import writing


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Give a new, empty folder, private to this user, which takes the place of ``folder`` as a
    whole when the block ends; an older one goes.

    If the block fails nothing is left of it, and an older folder is as it was. An error of the file
    system is a FileError, as by `writing`.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
        try:
            yield part
            _publish(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _publish(part: Path, folder: Path) -> None:
    """Rename a complete folder to its name. Of several writers at once, the last one's stays."""
    old = part.with_suffix(".old")
    while True:
        with suppress(FileNotFoundError):
            os.rename(folder, old)
        try:
            os.rename(part, folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                with suppress(OSError):
                    os.rename(old, folder)
                raise
            # Another writer's folder came in between.
        finally:
            shutil.rmtree(old, ignore_errors=True)


def is_replaceable(target: Path, marker: str) -> bool:
    """Whether nothing is lost with what is there: nothing, an empty folder, or one of ours, which
    has a file with the name ``marker``.

    Another writer may replace the folder meanwhile, and remove what it replaced file by file: only
    what is still there after it was read counts.
    """
    while True:
        try:
            folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return not os.path.lexists(target)  # one above it is a file: nothing can be written
        try:
            names = os.listdir(folder)
            if not names or marker in names:
                return True
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(folder), os.stat(target)):
                    return False
        finally:
            os.close(folder)
