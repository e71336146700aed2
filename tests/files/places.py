"""Places where writing fails, for real: full disks, read-only ones, permissions, limits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meta.base.caches import CACHES


def mounted(where: Path, options: str, source: str = "tmpfs", kind: str = "tmpfs") -> Path:
    """Mount something at a folder, which is made; skip where that is not allowed."""
    where.mkdir(exist_ok=True)
    command = ["mount", "-t", kind, "-o", options, source, str(where)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount")
    return where


@contextmanager
def small_disk(where: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    mounted(where, options)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@contextmanager
def full(where: Path) -> Iterator[Path]:
    """A disk of 64 KiB: some files fit."""
    with small_disk(where, "size=64k,mode=0700") as disk:
        yield disk


@contextmanager
def no_inodes(where: Path) -> Iterator[Path]:
    """A disk that takes no more files."""
    with small_disk(where, "size=64m,nr_inodes=6,mode=0700") as disk:
        yield disk


@contextmanager
def nothing_is_run(where: Path) -> Iterator[Path]:
    """A disk from which no library can be loaded."""
    with small_disk(where, "size=256m,noexec,mode=0700") as disk:
        yield disk


@contextmanager
def read_only(where: Path) -> Iterator[Path]:
    """A disk that can only be read."""
    with small_disk(where, "size=1m,ro,mode=0700") as disk:
        yield disk


@contextmanager
def a_file(where: Path) -> Iterator[Path]:
    """No folder at all."""
    where.write_text("")
    yield where


@contextmanager
def somebody_elses(where: Path) -> Iterator[Path]:
    """Folders of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    for name in CACHES:
        (where / name).mkdir(parents=True)
        os.chown(where / name, 54321, 54321)
    yield where


@contextmanager
def open_to_all(where: Path) -> Iterator[Path]:
    """Folders that others may write to."""
    for name in CACHES:
        (where / name).mkdir(parents=True)
        (where / name).chmod(0o777)
    yield where


PLACES: dict[str, Callable[[Path], object]] = {
    make.__name__: make
    for make in (full, no_inodes, nothing_is_run, read_only, a_file, somebody_elses, open_to_all)
}
