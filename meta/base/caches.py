"""The caches on disk: which there are, what they take, and the bound that they keep together.

A cache is a folder of *entries*, files or folders that are useful by themselves. Who uses one calls
`touch`, who writes one `count_written`, which removes those that were not used for the longest
time while all caches take more than META_CACHE_SIZE. An entry may vanish at any time: another
process may remove it, and whoever reads one takes one that is gone, or half gone, as none. To add a
cache, add a row to `CACHES`.

Only what has the names of our entries is counted or removed: somebody's own files may lie in a
folder that META_CACHE_DIR names.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from meta.base import config
from meta.base.errors import MetaWarning, UnknownName
from meta.base.registry import nearest

_HASH = "[0-9a-f]{64}"
TEMPORARY_PREFIX = ".new-"
"""How names begin of what is being written, or was when its writer died."""
STALE_SECONDS = 3600.0
"""Seconds after which what is unfinished is taken for left over: its writer died."""
CHECKS_PER_LIMIT = 16
"""What a process may write, as a part of the bound, before it looks again."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache: what is in it, and the paths of its entries, as a regular expression.

    An entry is the first path, from the folder of the cache downwards, that matches.
    """

    name: str
    what: str
    entry: re.Pattern[str]


def _cache(name: str, what: str, entry: str) -> Cache:
    unfinished = rf"(.*/)?{re.escape(TEMPORARY_PREFIX)}[^/]*"
    return Cache(name, what, re.compile(f"{entry}|{unfinished}"))


CACHES = {
    cache.name: cache
    for cache in (
        _cache("programs", "compiled programs", rf"[0-9a-f]{{2}}/\.?{_HASH}[^/]*"),
        _cache(
            "kernels",
            "kernels that TVM compiled",
            rf"{_HASH}(\.so)?",
        ),
        _cache("cubin", "machine code of the cuda dialect", _HASH),
        _cache("triton", "machine code of the triton dialect", _HASH),
        _cache("cudnn", "plans that cuDNN compiled", _HASH),
        _cache("cutlass", "kernels of the cutlass dialect", _HASH),
        _cache("emulator", "CUDA source compiled for the CPU", r"[0-9a-f]{16}/[^/]+\.(cpp|so|gch)"),
        _cache("tuning", "configurations that kernels of vendors chose", _HASH),
        _cache("vendors", "text of kernels that vendors generate", r"[^/]+\.py"),
        _cache("costs", "what was measured of kernels", rf"{_HASH}/{_HASH}\.json"),
    )
}
"""The caches by name, each in a folder of that name."""


def caches_folder() -> Path:
    """Return the folder that the folders of all caches of this user are in; it need not exist."""
    named = config.get("META_CACHE_DIR") or platformdirs.user_cache_dir("meta", appauthor=False)
    return Path(os.path.expanduser(named))  # "~nobody" stays as it is


def cache_folder(name: str) -> Path:
    """Return the folder of one cache of this user; it need not exist."""
    return caches_folder() / name


def open_private(where: Path) -> str:
    """Create the folder if need be; return why it cannot be trusted or used, or nothing."""
    if where.parts[:1] and where.parts[0].startswith("~"):
        return f"there is no home folder {where.parts[0]}"
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        information = where.stat()
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        return f"the folder cannot be made: {error}"
    return distrust(information)


def problems(where: Path) -> tuple[str, str]:
    """Create a folder if need be; return why it cannot be read, and why it cannot be written."""
    unreadable = open_private(where)
    if unreadable or os.access(where, os.W_OK):
        return unreadable, unreadable
    return "", "the folder is read-only"


def distrust(information: os.stat_result) -> str:
    """Return why a file or folder cannot be trusted, or nothing: others than this user and the
    administrator, who installs what is shared, may write to it.
    """
    if not hasattr(os, "geteuid"):
        return ""  # Windows: the user's folders are private by inheritance
    if information.st_uid not in (os.geteuid(), 0):
        return "it belongs to another user"
    if information.st_mode & 0o022:
        return "others may write to it"
    return ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: when it was used last, in seconds since 1970, and its files' sizes by identity:
    those of a program are kernels' files under another name.
    """

    used: float
    path: Path
    sizes: dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a cache takes on disk, in bytes; files that two of its entries share count once."""

    cache: Cache
    folder: Path
    entries: int
    size: int


def usage() -> list[Usage]:
    """Return what each cache takes."""
    found = []
    for cache in CACHES.values():
        here = list(_entries(cache))
        size = sum({key: size for e in here for key, size in e.sizes.items()}.values())
        found.append(Usage(cache, cache_folder(cache.name), len(here), size))
    return found


def total_bytes() -> int:
    """Return the bytes of all caches together; a file that several of them have counts once."""
    entries = (e for cache in CACHES.values() for e in _entries(cache))
    return sum({key: size for e in entries for key, size in e.sizes.items()}.values())


def limit_bytes() -> int:
    """Return the bytes that all caches may take together, 0 if there is no bound."""
    mebibytes: int = config.get("META_CACHE_SIZE")
    return max(mebibytes, 0) << 20


def touch(entry: Path) -> None:
    """Note that an entry was used now."""
    with suppress(OSError):  # removed meanwhile, or a folder that is only read
        os.utime(entry)


_lock = threading.Lock()
_bytes_since_check: int | None = None


def count_written(size: int) -> None:
    """Note that an entry of so many bytes was written, and keep the bound.

    The caches are looked through at a process's first entry, and then when it has written a
    `CHECKS_PER_LIMIT`-th of the bound.
    """
    global _bytes_since_check
    with _lock:
        most = limit_bytes()
        before, _bytes_since_check = (
            _bytes_since_check,
            size if _bytes_since_check is None else _bytes_since_check + size,
        )
        if most == 0 or (before is not None and _bytes_since_check * CHECKS_PER_LIMIT < most):
            return
        _bytes_since_check = 0
        trim(most)


_warned_folders: set[Path] = set()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file of a cache, for this user only; it has its name when it is complete.

    OSError if that cannot be done; then nothing of it is left.
    """
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY_PREFIX)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            os.unlink(part)
        raise


def warn_unwritable(reason: str) -> None:
    """Warn, once for each place of the caches, that what was made is not kept there."""
    place = caches_folder()
    with _lock:
        if place in _warned_folders:
            return
        _warned_folders.add(place)
    warnings.warn(
        f"what is compiled cannot be kept in {place}: {reason}. Programs run as ever, and the next "
        "process compiles anew. META_CACHE_DIR names another folder; META_CACHE=0 wants none",
        MetaWarning,
        stacklevel=2,
    )


def trim(most: int) -> None:
    """Remove entries, those first that were not used for the longest time, until all caches
    together take at most so many bytes.
    """
    entries = [e for cache in CACHES.values() for e in _entries(cache)]
    sizes = {key: size for e in entries for key, size in e.sizes.items()}
    holders = Counter(key for e in entries for key in e.sizes)
    left = sum(sizes.values())
    for entry in sorted(entries, key=lambda e: e.used):
        if left <= most:
            return
        unfinished = entry.path.name.startswith(".")
        if _used_since(entry) or (unfinished and time.time() - entry.used < STALE_SECONDS):
            continue
        _remove(entry.path)
        holders.subtract(entry.sizes.keys())
        left -= sum(size for key, size in entry.sizes.items() if holders[key] == 0)


def clear(names: Iterable[str] = ()) -> None:
    """Remove the entries of the caches of these names, of all without one; UnknownName for a name
    that is none.
    """
    wanted = tuple(names) or tuple(CACHES)
    for name in wanted:
        if name not in CACHES:
            raise UnknownName(
                f"there is no cache {name!r}",
                expected=", ".join(CACHES),
                hint=nearest(name, CACHES),
            )
    for name in wanted:
        for entry in _entries(CACHES[name]):
            _remove(entry.path)


def _used_since(entry: Entry) -> bool:
    """Whether somebody used an entry after the caches were looked through."""
    try:
        return entry.path.lstat().st_mtime > entry.used
    except OSError:  # another process removed it
        return False


def _remove(path: Path) -> None:
    with suppress(OSError):  # another process was faster
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _entries(cache: Cache) -> Iterator[Entry]:
    """Iterate over the entries of a cache; one that others could have put there has none."""
    folder = cache_folder(cache.name)
    with suppress(OSError):
        if not distrust(folder.stat()):
            yield from _entries_below(folder, "", cache.entry)


def _entries_below(folder: Path, prefix: str, pattern: re.Pattern[str]) -> Iterator[Entry]:
    for one in _directory_entries(folder):
        name = prefix + one.name
        with suppress(OSError):  # removed meanwhile
            if pattern.fullmatch(name):
                used = one.stat(follow_symlinks=False).st_mtime
                yield Entry(used, Path(one.path), dict(_file_sizes(one)))
            elif one.is_dir(follow_symlinks=False):
                yield from _entries_below(Path(one.path), f"{name}/", pattern)


def _file_sizes(one: os.DirEntry[str]) -> Iterator[tuple[tuple[int, int], int]]:
    """Iterate over the files at a place: their identities and bytes."""
    with suppress(OSError):
        if one.is_dir(follow_symlinks=False):
            for inner in _directory_entries(Path(one.path)):
                yield from _file_sizes(inner)
        else:
            found = os.stat(one.path, follow_symlinks=False)
            yield (found.st_dev, found.st_ino), found.st_size


def _directory_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:  # removed meanwhile
        return []
