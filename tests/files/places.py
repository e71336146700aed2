"""Places where writing fails, for real: full disks, read-only ones, permissions, limits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from meta.base.caches import CACHES


@contextmanager
def small_disk(where: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory, mounted at a folder; skip where that is not allowed."""
    where.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@contextmanager
def changed_folders(where: Path, change: Callable[[Path], None]) -> Iterator[Path]:
    """A cache's folders, to each of which something was done."""
    for name in CACHES:
        (where / name).mkdir(parents=True)
        change(where / name)
    yield where


def full(where: Path) -> AbstractContextManager[Path]:
    """A disk of 64 KiB: some files fit."""
    return small_disk(where, "size=64k,mode=0700")


def no_inodes(where: Path) -> AbstractContextManager[Path]:
    """A disk that takes no more files."""
    return small_disk(where, "size=64m,nr_inodes=6,mode=0700")


def nothing_is_run(where: Path) -> AbstractContextManager[Path]:
    """A disk from which no library can be loaded."""
    return small_disk(where, "size=256m,noexec,mode=0700")


def read_only(where: Path) -> AbstractContextManager[Path]:
    """A disk that can only be read."""
    return small_disk(where, "size=1m,ro,mode=0700")


@contextmanager
def a_file(where: Path) -> Iterator[Path]:
    """No folder at all."""
    where.write_text("")
    yield where


def somebody_elses(where: Path) -> AbstractContextManager[Path]:
    """Folders of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    return changed_folders(where, lambda folder: os.chown(folder, 54321, 54321))


def open_to_all(where: Path) -> AbstractContextManager[Path]:
    """Folders that others may write to."""
    return changed_folders(where, lambda folder: folder.chmod(0o777))


PLACES: dict[str, Callable[[Path], AbstractContextManager[Path]]] = {
    make.__name__: make
    for make in (full, no_inodes, nothing_is_run, read_only, a_file, somebody_elses, open_to_all)
}
