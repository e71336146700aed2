"""Files of users: opened for reading only if they are files, and errors of writing as `FileError`.

A device never ends (``/dev/zero``) and a FIFO waits for a writer that may never come, so neither is
read. Whoever reads a file that somebody else may have written opens it here, and whoever has a
library open it asks `require_file` first.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from meta.base.errors import FileError, FormatError, OutOfMemory

MAX_FILE_BYTES = 1 << 40
"""Larger files are not read: no machine holds one in memory."""


def open_file(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> BinaryIO:
    """Return a file opened for reading, as bytes.

    Raises FormatError for what is no ordinary file (a device, a FIFO, a socket) or has more than
    ``most`` bytes, and OSError if it cannot be opened.
    """
    # A FIFO is opened at once, without a writer, and a terminal does not become this process's own.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), path, most)
        return open(descriptor, "rb")
    except BaseException:  # an interrupt, too: nobody else knows the descriptor
        os.close(descriptor)
        raise


def read_file(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> bytes:
    """Return what is in a file; errors as of `open_file`, and OutOfMemory."""
    try:
        with open_file(path, most) as file:
            content = file.read()
    except MemoryError:
        raise OutOfMemory(
            "there is not enough memory for a file", planned=os.stat(path).st_size
        ) from None
    if len(content) > most:  # it grows, or is one of those whose size the system does not say
        raise _too_large(path, most)
    return content


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the hash of a file; errors as of `open_file`."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checksum(record: Any) -> str:
    """Return a hash of JSON data, the same before it is written and after it is read."""
    text = json.dumps(json.loads(json.dumps(record)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def require_file(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> None:
    """Check what a library is to open by itself; errors as of `open_file`."""
    _check(os.stat(path), path, most)


def _check(information: os.stat_result, path: str | os.PathLike[str], most: int) -> None:
    if stat.S_ISDIR(information.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(information.st_mode):
        raise FormatError(
            "only ordinary files are read",
            found=f"{os.fspath(path)}, a {_kind(information.st_mode)}",
            hint="copy what it holds to a file",
        )
    if information.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | os.PathLike[str], most: int) -> FormatError:
    return FormatError(
        "this file is larger than one of its kind can be",
        expected=f"at most {most:,} bytes",
        found=os.fspath(path),
    )


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
        (stat.S_ISFIFO, "FIFO"),
        (stat.S_ISSOCK, "socket"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "special file")


@contextmanager
def writing(target: str | os.PathLike[str]) -> Iterator[None]:
    """Let an error of the file system in a block be a FileError that names what was to be written.

    The block leaves nothing half written. A device is nothing that it may replace: FileError too.
    An error about a file of a folder that was to be written is one about the folder.
    """
    _require_replaceable(target)
    try:
        yield
    except FileError as error:
        if error.filename == os.fspath(target):
            raise
        raise unwritable(target, error.__cause__ or error) from error
    except OSError as error:
        raise unwritable(target, error) from error


@contextmanager
def replacing(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new, empty file, which takes the place of ``target`` as a whole when the block ends.

    A reader sees the old file or the new one, with the mode of new files. If the block fails,
    nothing is left of it; an error of the file system is a FileError, as by `writing`.
    """
    place = Path(target)
    part = place.with_name(f".{place.name}.{os.getpid()}-{threading.get_ident()}.part")
    with writing(place):
        try:
            part.touch()  # says at once that the place cannot be written to
            mode = part.stat().st_mode
            yield part
            part.chmod(mode)  # libraries make some files private
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)


def _require_replaceable(target: str | os.PathLike[str]) -> None:
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return  # it is not there, or the block will meet the same error
    except ValueError as error:
        raise unwritable(repr(os.fspath(target)), error) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileError(
            f"{os.fspath(target)} cannot be written",
            found=f"a {_kind(mode)}",
            expected="an ordinary file, or a new one",
        )


def unwritable(target: str | os.PathLike[str], error: BaseException) -> FileError:
    """Return the error to raise where a file or folder could not be written."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    raised = FileError(
        f"{Path(target)} cannot be written",
        found=str(error),
        hint="make room there, or write to another disk"
        if full or "os error 28" in str(error)
        else "does the folder exist, and may this user write to it?",
    )
    raised.errno, raised.filename = getattr(error, "errno", None), os.fspath(target)
    return raised
