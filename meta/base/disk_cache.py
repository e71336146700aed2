"""Disk cache: bytes that took long to make, kept between processes under a key that decides them.

They are in one of the caches of `caches.py`.

A file is named after the hash of its key, and ends with the hash of what precedes it, so that a
library is loaded where it is. One that is damaged, or that others could have written, is as good as
none.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from meta.base import caches, config
from meta.base.caches import cache_folder, distrust, open_private

_HASH = hashlib.sha256().digest_size


def get(cache: str, key: str, suffix: str = "") -> bytes | None:
    """Return what is kept in a cache under a key, None if nothing is."""
    file = _file(cache, key, suffix)
    if file is None:
        return None
    content = read(file)
    if content is not None:
        caches.touch(file)
    return content


def read(file: Path) -> bytes | None:
    """Return what is kept in a file, None if it is not there, or not as it was written."""
    try:
        with file.open("rb") as opened:
            if distrust(os.fstat(opened.fileno())):
                return None
            content = opened.read()
    except OSError:
        return None
    content, digest = content[:-_HASH], content[-_HASH:]
    return content if hashlib.sha256(content).digest() == digest else None


def path_of(cache: str, key: str, suffix: str = "") -> Path | None:
    """Return the file of what is kept under a key, None if nothing is."""
    file = _file(cache, key, suffix)
    return file if file is not None and file.is_file() else None


def store(cache: str, key: str, content: bytes, suffix: str = "") -> None:
    """Keep something under a key; the file has its name when it is complete. A full or read-only
    disk keeps nothing, and there is one warning.
    """
    file = _file(cache, key, suffix)
    if file is None:
        return
    try:
        if not os.access(file.parent, os.W_OK):
            raise PermissionError("the folder is read-only")
        caches.write_atomically(file, content + hashlib.sha256(content).digest())
    except OSError as error:
        caches.warn_unwritable(str(error))
        return
    caches.count_written(_HASH + len(content))


def _file(cache: str, key: str, suffix: str) -> Path | None:
    """Return the file of a key, None if nothing is to be kept, or the folder is not this user's."""
    if not config.get("META_CACHE"):
        return None
    folder = cache_folder(cache)
    problem = open_private(folder)
    if problem:
        caches.warn_unwritable(problem)
        return None
    return folder / (hashlib.sha256(key.encode()).hexdigest() + suffix)
