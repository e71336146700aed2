"""Parameter files: what ``relay.save_param_dict`` writes, named arrays in a binary form.

The layout, little endian throughout: a magic number, 8 reserved bytes, the number of names and the
names (each a length and UTF-8), the number of arrays, and the arrays' records, in the order of the
names (`ndarray_record.py`).
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from meta.base.errors import FormatError
from meta.base.files import read_file, writing
from meta.base.progress import bar
from meta.frontend.relay.errors import ParamsError
from meta.frontend.relay.ndarray_record import BadRecord, read_record, write_record

MAGIC = struct.pack("<Q", 0xF7E58D4F05049CB7)
_COUNT = struct.Struct("<Q")
_SMALLEST_RECORD = 40  # header and length of an array without axes
_PROGRESS_DELAY = 1.0

Source = bytes | str | os.PathLike[str]


def _load(source: Source) -> tuple[memoryview, str]:
    if isinstance(source, bytes):
        return memoryview(source), "<params>"
    try:
        return memoryview(read_file(source)), str(source)
    except FormatError as error:
        raise ParamsError(error.what, found=error.found, hint=error.hint) from None
    except (OSError, ValueError) as error:
        raise ParamsError(f"the parameter file cannot be read: {error}") from None


def _count(data: memoryview, offset: int, least: int, what: str, where: str) -> int:
    """Read a number of things that each take at least so many of the bytes that are left."""
    if len(data) - offset < _COUNT.size:
        raise ParamsError(f"{where} ends before the number of its {what}")
    count: int = _COUNT.unpack_from(data, offset)[0]
    left = len(data) - offset - _COUNT.size
    if count * least > left:
        raise ParamsError(f"{where} is damaged: {count} {what} in {left} bytes")
    return count


def _name(data: memoryview, offset: int, where: str) -> tuple[str, int]:
    length = _count(data, offset, 1, "bytes of a name", where)
    start = offset + _COUNT.size
    try:
        return bytes(data[start : start + length]).decode(), start + length
    except UnicodeDecodeError:
        raise ParamsError(f"{where} is damaged: a name that is not valid UTF-8") from None


def _names(data: memoryview, offset: int, where: str) -> tuple[list[str], int]:
    count = _count(data, offset, _COUNT.size, "names", where)
    offset += _COUNT.size
    names: list[str] = []
    for _ in range(count):
        name, offset = _name(data, offset, where)
        names.append(name)
    if len(set(names)) != len(names):
        twice = next(name for name, k in Counter(names).items() if k > 1)
        raise ParamsError(f"{where} has two parameters called {twice!r}")
    return names, offset


def read_params(source: Source) -> dict[str, torch.Tensor]:
    """Read a parameter file.

    Parameters
    ----------
    source: the content, as bytes, or the file's path.

    Returns the arrays by name, in the file's order, which means nothing. Every length is compared
    with the bytes that are left before anything is allocated.

    Raises ParamsError, with the parameter's name if one is concerned.
    """
    data, where = _load(source)
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise ParamsError(
            f"{where} is no parameter file",
            expected=f"it begins with {MAGIC.hex(' ')}",
            found=bytes(data[:8]).hex(" ") or "an empty file",
            hint="parameter files are written by relay.save_param_dict",
        )
    names, offset = _names(data, 2 * len(MAGIC), where)
    count = _count(data, offset, _SMALLEST_RECORD, "arrays", where)
    offset += _COUNT.size
    if count != len(names):
        raise ParamsError(f"{where} is damaged: {count} arrays for {len(names)} names")
    params: dict[str, torch.Tensor] = {}
    with bar(len(data), f"reading {where}", _PROGRESS_DELAY) as progress:
        for name in names:
            try:
                tensor, offset = read_record(data, offset)
            except BadRecord as error:
                raise ParamsError(
                    f"parameter {name!r} of {where} cannot be read: {error}"
                ) from None
            assert tensor is not None  # only JSON has bool arrays without their bytes
            params[name] = tensor
            progress.update(offset - progress.n)
    _check_end(data, offset, where)
    return params


def _check_end(data: memoryview, offset: int, where: str) -> None:
    if offset == len(data):
        return
    if bytes(data[offset : offset + len(MAGIC)]) == MAGIC:
        raise ParamsError(
            f"{where} holds several parameter files, one after the other",
            hint="read them apart; TVM itself reads only the first",
        )
    raise ParamsError(f"{where} is damaged: {len(data) - offset} bytes after its end")


def dump_params(params: Mapping[str, torch.Tensor]) -> bytes:
    """Return the content of a parameter file, as TVM reads it.

    Raises ParamsError for a dtype that TVM has no code for, and a name that is no text.
    """
    parts = [MAGIC, bytes(8), _COUNT.pack(len(params))]
    for name in params:
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise ParamsError(f"the name {name!r} cannot be written as UTF-8") from None
        parts += [_COUNT.pack(len(encoded)), encoded]
    parts.append(_COUNT.pack(len(params)))
    for name, tensor in params.items():
        try:
            parts.append(write_record(tensor))
        except BadRecord as error:
            raise ParamsError(f"parameter {name!r} cannot be written: {error}") from None
    return b"".join(parts)


def write_params(params: Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write a parameter file that TVM, and `read_params`, can read. FileError where that cannot
    be done.
    """
    data = dump_params(params)
    with writing(path):
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(data)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
