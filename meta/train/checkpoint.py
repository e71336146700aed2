"""Checkpoints on disk: a folder of them, each a folder that appears complete or not at all.

::

    step-00000100/
        model.safetensors      the model's state, under its own names (`meta.model.load_weights`)
        training.safetensors   all else that the training step keeps: moments, counters, ...
        checkpoint.json        format, version, hashes of the files, position in the data, random
                               state, state of the callbacks

A checkpoint is written under another name, flushed to the disk, and renamed, so a process may be
killed at any moment. Nothing in it is run when it is read.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.base.errors import ArgumentError, FormatError
from meta.base.files import checksum, read_file, sha256, writing
from meta.runtime.tensor_file import read_tensors, write_tensors

NUMBERS = "biufc"
"""Kinds of numpy's dtypes that are kept: no objects, no text."""


def to_plain(value: Any, where: str) -> Any:
    """Return a value as what `json` writes; ArgumentError, naming the place, for other objects."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return to_plain(value.item(), where)
    if isinstance(value, list):
        return [to_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: to_plain(v, f"{where}[{k!r}]") for k, v in value.items()}
        return {"$dict": [to_plain(list(item), where) for item in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": to_plain(list(value), where)}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
        return {"$numpy": _bytes(value.dtype.str, value.shape, value.tobytes())}
    if isinstance(value, torch.Tensor) and value.dtype in FROM_TORCH:
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"$tensor": _bytes(FROM_TORCH[value.dtype], value.shape, raw)}
    raise ArgumentError(
        f"{where} cannot be kept in a checkpoint",
        expected="None, numbers, text, bytes, arrays, and lists, tuples and dicts of them",
        found=type(value).__name__,
    )


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given; FormatError for what it does not write."""
    if isinstance(value, list):
        return [from_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if not any(isinstance(k, str) and k.startswith("$") for k in value):
        return {k: from_plain(v) for k, v in value.items()}
    try:
        ((kind, content),) = value.items()
        return _from_marked(kind, content)
    except (ValueError, KeyError, TypeError, RuntimeError, binascii.Error) as error:
        raise FormatError("this state is damaged", found=str(error)) from error


def _from_marked(kind: str, content: Any) -> Any:
    if kind == "$tuple":
        return tuple(from_plain(content))
    if kind == "$bytes":
        return base64.b64decode(content, validate=True)
    if kind == "$dict":
        return dict(map(from_plain, content))
    if kind == "$numpy":
        dtype = np.dtype(content["dtype"])
        if dtype.kind not in NUMBERS:
            raise ValueError(f"an array of {dtype}")
        return np.frombuffer(_raw(content), dtype).reshape(content["shape"])
    if kind == "$tensor":
        raw, of = _raw(content), TO_TORCH[content["dtype"]]
        flat = torch.frombuffer(raw, dtype=of) if raw else torch.empty(0, dtype=of)
        return flat.reshape(content["shape"])
    raise ValueError(f"unknown mark {kind!r}")


def _bytes(dtype: str, shape: Sequence[int], raw: bytes) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data": base64.b64encode(raw).decode("ascii")}


def _raw(content: dict[str, Any]) -> bytearray:
    return bytearray(base64.b64decode(content["data"], validate=True))


SCHEMA, VERSION = "meta.train.checkpoint", 1
MODEL, TRAINING, RECORD = "model.safetensors", "training.safetensors", "checkpoint.json"
MAX_RECORD_BYTES = 256 << 20
"""Larger records are not ours."""
_NAME = re.compile(r"step-(\d{8,})")
_PART = ".part"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes
    ----------
    step: how many steps were done. model, training: tensors by name. more: the rest of the run's
    state, as it was given to `Checkpoints.write`.
    """

    step: int
    model: dict[str, torch.Tensor]
    training: dict[str, torch.Tensor]
    more: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder.

    Parameters
    ----------
    folder: made if need be. keep: how many of the newest stay.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        self.folder, self.keep = Path(folder), keep
        if not isinstance(keep, int) or keep < 1:
            raise ArgumentError(
                "keep is a number of checkpoints", expected="an int >= 1", found=keep
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError("checkpoints cannot be kept there", found=str(error)) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from writing here during a block; ends with the process, however that
        ends. What a killed run left half written is removed.
        """
        with open(self.folder / ".lock", "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ArgumentError(
                    "another run writes its checkpoints here",
                    found=str(self.folder),
                    hint="give each run a folder of its own",
                ) from error
            for part in self.folder.glob(f".step-*{_PART}"):
                shutil.rmtree(part)
            yield

    def steps(self) -> list[int]:
        """Return the step numbers of the complete checkpoints, ascending."""
        matches = (_NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(m[1]) for m in matches if m is not None)

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def _part(self, target: Path) -> Path:
        return target.with_name(f".{target.name}{_PART}")

    def write(
        self,
        step: int,
        model: Mapping[str, torch.Tensor],
        training: Mapping[str, torch.Tensor],
        more: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint, remove those that are too old, and return its folder.

        Raises ArgumentError for state in ``more`` that cannot be written, and FileError if the
        folder is full, read-only or gone; the checkpoints before are then as they were.
        """
        record = {
            "schema": SCHEMA,
            "version": VERSION,
            "step": step,
            "more": {k: to_plain(v, k) for k, v in more.items()},
        }
        target = self.path(step)
        part = self._part(target)
        with writing(self.folder):
            part.mkdir()
            try:
                write_tensors(part / MODEL, model)
                write_tensors(part / TRAINING, training)
                record["files"] = {name: sha256(part / name) for name in (MODEL, TRAINING)}
                text = json.dumps({**record, "checksum": checksum(record)})
                (part / RECORD).write_text(text, encoding="utf-8")
                for path in (*part.iterdir(), part):
                    _flush(path)
                os.rename(part, target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            _flush(self.folder)
            for old in self.steps()[: -self.keep]:
                # It goes under another name first: half of a checkpoint is none.
                part = self._part(self.path(old))
                os.rename(self.path(old), part)
                shutil.rmtree(part)
        return target

    def newest(self) -> Checkpoint | None:
        """Read the newest checkpoint; None if there is none. See `read_checkpoint`."""
        steps = self.steps()
        return read_checkpoint(self.path(steps[-1])) if steps else None


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint's folder.

    Raises FormatError for a folder that is damaged, no checkpoint, or of a later version.
    """
    where = Path(folder)
    record = _record(where)
    for name, expected in record["files"].items():
        if not (where / name).is_file() or sha256(where / name) != expected:
            raise _refusal(where, f"its file {name} is missing or damaged")
    return Checkpoint(
        record["step"],
        read_tensors(where / MODEL),
        read_tensors(where / TRAINING),
        {k: from_plain(v) for k, v in record["more"].items()},
    )


def _record(where: Path) -> dict[str, Any]:
    path = where / RECORD
    try:
        record = json.loads(read_file(path, MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(where, f"{RECORD} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _refusal(where, f"{RECORD} is of something else")
    if record.get("version") != VERSION:
        raise FormatError(
            "this checkpoint is of another version of the format",
            expected=VERSION,
            found=f"{record.get('version')} in {where}",
            hint="read it with the version of meta that wrote it",
        )
    if record.pop("checksum", None) != checksum(record):
        raise _refusal(where, f"{RECORD} was changed")
    return record


def _refusal(where: Path, what: str) -> FormatError:
    return FormatError(
        "this is no complete checkpoint",
        expected=f"a folder with {MODEL}, {TRAINING} and {RECORD}",
        found=f"{where}: {what}",
        hint="remove the folder to go on from the checkpoint before it",
    )


def _flush(path: Path) -> None:
    """Make a file, or a folder's list of names, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
