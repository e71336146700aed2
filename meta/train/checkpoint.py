"""Checkpoints on disk: a folder of them, each a folder that appears complete or not at all.

::

    step-00000100/
        model.safetensors        the model's arrays, under its own names
                                 (`meta.model.load_weights`); absent if ranks have parts of them
        rank-00000.safetensors   what else rank 0 writes: moments, counters, parts of arrays;
        rank-00001.safetensors   and so on, one for each rank
        checkpoint.json          the manifest: format, version, hashes of the files, the mesh, who
                                 wrote which part of which array (`checkpoint_shards.py`), position
                                 in the data, random state, state of the callbacks

A checkpoint is written under another name, flushed to the disk, and renamed by the first rank when
all have written their parts, so any process may be killed at any moment. It is read on any mesh.
Nothing in it is run when it is read.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from meta.base.errors import ArgumentError, DistributedError, FormatError
from meta.base.files import checksum, read_file, sha256, writing
from meta.runtime.mesh import current_mesh
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement
from meta.runtime.tensor_file import TensorFile, write_tensors
from meta.train.checkpoint_shards import ShardedArray, assign_writers, rank_number
from meta.train.json_state import from_json, to_json
from meta.train.process_group import SINGLE_PROCESS, ProcessGroup

SCHEMA, VERSION = "meta.train.checkpoint", 2
MODEL, RECORD = "model.safetensors", "checkpoint.json"
SECTIONS = ("model", "training")
MAX_RECORD_BYTES = 256 << 20
"""Larger records are not ours."""
_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".part"


def rank_file(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes
    ----------
    step: how many steps were done. model, training: tensors by name, whole. more: the rest of the
    run's state, as it was given to `Checkpoints.write` on the first rank.

    >>> from tempfile import TemporaryDirectory
    >>> x, net = meta.ones((4, 1)), meta.model.Linear(1, 1)
    >>> data, sgd = meta.train.Batches(x, x, 2), meta.optim.with_sgd()
    >>> with TemporaryDirectory() as folder:
    ...     record = meta.train.fit(net, meta.mse_loss, data, sgd, epochs=1, checkpoint=folder)
    ...     checkpoint = meta.train.read_checkpoint(record.checkpoint)
    >>> checkpoint.step, sorted(checkpoint.model)
    (2, ['bias', 'weight'])
    """

    step: int
    model: dict[str, torch.Tensor]
    training: dict[str, torch.Tensor]
    more: dict[str, Any]


class CheckpointFolder:
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
            for part in self.folder.glob(f".step-*{_UNFINISHED}"):
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
        return target.with_name(f".{target.name}{_UNFINISHED}")

    def write(
        self,
        step: int,
        model: Mapping[str, ndarray],
        training: Mapping[str, ndarray],
        more: Mapping[str, Any],
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> Path:
        """Write a checkpoint, remove those that are too old, and return its folder.

        All ranks of a group call it, each with its parts of the arrays and its state ``more``.

        Raises ArgumentError for state in ``more`` that cannot be written, and FileError if the
        folder is full, read-only or gone, DistributedError where it is so on another rank; the
        checkpoints before are then as they were.
        """
        draft = _CheckpointWriter(group, step, {"model": model, "training": training})
        state = _gather_states(more, group)
        target = self.path(step)
        part = self._part(target)

        def begin() -> None:
            with writing(self.folder):
                part.mkdir()

        def finish() -> None:
            with writing(self.folder):
                _write_record(part, draft.record(state, files))
                os.rename(part, target)
                _fsync(self.folder)

        def forget() -> None:
            with writing(self.folder):
                for old in self.steps()[: -self.keep]:
                    # It goes under another name first: half of a checkpoint is none.
                    gone = self._part(self.path(old))
                    os.rename(self.path(old), gone)
                    shutil.rmtree(gone)

        group.on_rank_zero("beginning a checkpoint", begin)
        try:
            files = group.on_each_rank(
                "writing its part of a checkpoint", partial(draft.write, part)
            )
            group.on_rank_zero("completing a checkpoint", finish)
        finally:
            if group.is_rank_zero:
                shutil.rmtree(part, ignore_errors=True)
        group.on_rank_zero("removing old checkpoints", forget)
        return target

    def newest(self) -> StoredCheckpoint | None:
        """Open the newest checkpoint; None if there is none. See `StoredCheckpoint`."""
        steps = self.steps()
        return StoredCheckpoint(self.path(steps[-1])) if steps else None


class _CheckpointWriter:
    """A checkpoint that is being written: what this rank writes, and what the first one states."""

    def __init__(
        self, group: ProcessGroup, step: int, arrays: Mapping[str, Mapping[str, ndarray]]
    ) -> None:
        self.step = step
        mesh = None if group.alone else current_mesh()
        self.sizes = {} if mesh is None else mesh.sizes
        self.place = {} if mesh is None else mesh.coordinates
        self.rank = 0 if mesh is None else mesh.rank
        named = {f"{kind}/{n}": a for kind, its in arrays.items() for n, a in its.items()}
        whole = not any(a.placement.splits for a in arrays["model"].values())
        self.model = arrays["model"] if whole else {}
        of_model = {f"model/{n}" for n in self.model}
        self.arrays = {n: a for n, a in named.items() if n not in of_model}
        self.written = {
            **{n: ShardedArray(named[n].dtype, named[n].placement, {}) for n in of_model},
            **assign_writers(self.arrays, self.sizes),
        }
        self.whole_model = whole

    def write(self, part: Path) -> dict[str, str]:
        """Write this rank's files; return their hashes by name."""
        files = {
            rank_file(self.rank): {
                n: a for n, a in self.arrays.items() if self.written[n].is_written_by(self.place)
            }
        }
        if self.whole_model and self.rank == 0:
            files[MODEL] = dict(self.model)
        found = {}
        with writing(part.parent):
            for name, arrays in files.items():
                write_tensors(part / name, {n: a.tensor for n, a in arrays.items()})
                _fsync(part / name)
                found[name] = sha256(part / name)
        return found

    def record(self, state: list[Any], files: list[dict[str, str]]) -> dict[str, Any]:
        """Return the manifest. State of a rank that is that of the first one is stated once."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "step": self.step,
            "mesh": self.sizes,
            "arrays": {name: written.record() for name, written in self.written.items()},
            "more": state[0],
            "ranks": {str(i): one for i, one in enumerate(state) if i and one is not None},
            "files": {name: its for found in files for name, its in found.items()},
        }


def _gather_states(more: Mapping[str, Any], group: ProcessGroup) -> list[Any]:
    """Return the state of each rank as JSON data; None for one that has that of the first rank."""
    own: dict[str, Any] = {}

    def plain() -> str:
        own.update({k: to_json(v, k) for k, v in more.items()})
        return checksum(own)

    hashes = group.on_each_rank("its state", plain)
    differs = group.is_rank_zero or checksum(own) != hashes[0]
    given = group.gather(json.dumps(own) if differs else None, "the state of the run")
    return [None if text is None else json.loads(text) for text in given]


def _write_record(part: Path, record: dict[str, Any]) -> None:
    missing = [name for name in record["files"] if not (part / name).is_file()]
    if missing:
        raise DistributedError(
            "files of other ranks are not in the folder of checkpoints",
            expected="one folder for all ranks",
            found=f"{', '.join(missing)} not in {part.parent}",
            hint="give a folder that the hosts of all ranks share",
        )
    text = json.dumps({**record, "checksum": checksum(record)})
    (part / RECORD).write_text(text, encoding="utf-8")
    _fsync(part / RECORD)
    _fsync(part)


class StoredCheckpoint:
    """A checkpoint on disk, whose arrays are read one by one.

    Raises FormatError for a folder that is damaged, no checkpoint, or of a later version.

    Attributes
    ----------
    step: how many steps were done. more: the rest of the state, of the first rank. sizes: the mesh
    of the run. written: by section and name, how arrays are written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        record = _record(self.folder)
        try:
            self.sizes: dict[str, int] = record["mesh"]
            self._files: dict[str, str] = record["files"]
            self.written: dict[str, dict[str, ShardedArray]] = {kind: {} for kind in SECTIONS}
            for name, its in record["arrays"].items():
                kind, _, own = name.partition("/")
                self.written[kind][own] = ShardedArray.of(its, self.sizes)
            names = {rank_file(rank) for rank in range(math.prod(self.sizes.values()))}
            if self._files.keys() not in (names, names | {MODEL}):
                raise ValueError(f"files {', '.join(self._files)}")
            self.step: int = record["step"]
            self.more: dict[str, Any] = {k: from_json(v) for k, v in record["more"].items()}
            self._ranks: dict[str, Any] = record["ranks"]
        except (KeyError, TypeError, ValueError, AttributeError, DistributedError) as error:
            raise _format_error(self.folder, f"{RECORD} is damaged: {error}") from error
        self._open: dict[str, TensorFile] = {}

    def check(self, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Compare the files with their hashes, each on one rank; all ranks of a group call it."""
        names = sorted(self._files)
        own = 0 if group.alone else current_mesh().rank
        count = 1 if group.alone else current_mesh().size
        group.on_each_rank("reading a checkpoint", lambda: self._check(names[own::count]))

    def _check(self, names: list[str]) -> None:
        for name in names:
            path = self.folder / name
            if not path.is_file() or sha256(path) != self._files[name]:
                raise _format_error(self.folder, f"its file {name} is missing or damaged")

    def state(self, group: ProcessGroup = SINGLE_PROCESS) -> dict[str, Any]:
        """Return the rest of this rank's state; on another mesh that of the first rank."""
        if group.alone or current_mesh().sizes != self.sizes:
            return self.more
        own = self._ranks.get(str(current_mesh().rank))
        return self.more if own is None else {k: from_json(v) for k, v in own.items()}

    def part(
        self, kind: str, name: str, placement: Placement, place: Mapping[str, int]
    ) -> torch.Tensor:
        """Return the part of an array that a rank has at a place, under a placement of its own."""
        its = self.written[kind][name]
        where = {split.over: 0 for split in placement.splits} | dict(place)
        if its.placement == placement:
            at = {**its.at, **{split.over: where[split.over] for split in placement.splits}}
            return self._wrote(kind, name, rank_number(at, self.sizes))
        return placement.part(self.whole(kind, name), where)

    def whole(self, kind: str, name: str) -> torch.Tensor:
        """Return an array as a whole."""
        return self.written[kind][name].assemble(partial(self._wrote, kind, name), self.sizes)

    def _wrote(self, kind: str, name: str, rank: int) -> torch.Tensor:
        """Return what a rank wrote of an array."""
        if kind == "model" and MODEL in self._files:
            return self._file(MODEL)[name]
        return self._file(rank_file(rank))[f"{kind}/{name}"]

    def read(self) -> Checkpoint:
        """Return all of it; FormatError if a file is damaged."""
        self.check()
        model, training = ({n: self.whole(k, n) for n in self.written[k]} for k in SECTIONS)
        return Checkpoint(self.step, model, training, self.more)

    def _file(self, name: str) -> TensorFile:
        if name not in self._open:
            self._open[name] = TensorFile(self.folder / name)
        return self._open[name]


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint's folder, with all arrays whole, whatever the mesh that it is of.

    Raises FormatError for a folder that is damaged, no checkpoint, or of another version.

    >>> from tempfile import TemporaryDirectory
    >>> x, net = meta.ones((4, 1)), meta.model.Linear(1, 1)
    >>> data, sgd = meta.train.Batches(x, x, 2), meta.optim.with_sgd()
    >>> with TemporaryDirectory() as folder:
    ...     record = meta.train.fit(net, meta.mse_loss, data, sgd, epochs=1, checkpoint=folder)
    ...     checkpoint = meta.train.read_checkpoint(record.checkpoint)
    >>> checkpoint.model["weight"].item() == net.weight.item()
    True
    """
    return StoredCheckpoint(folder).read()


def _record(where: Path) -> dict[str, Any]:
    path = where / RECORD
    try:
        record = json.loads(read_file(path, MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise _format_error(where, f"{RECORD} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise _format_error(where, f"{RECORD} is of something else")
    if record.get("version") != VERSION:
        raise FormatError(
            "this checkpoint is of another version of the format",
            expected=VERSION,
            found=f"{record.get('version')} in {where}",
            hint="read it with the version of meta that wrote it",
        )
    if record.pop("checksum", None) != checksum(record):
        raise _format_error(where, f"{RECORD} was changed")
    return record


def _format_error(where: Path, what: str) -> FormatError:
    return FormatError(
        "this is no complete checkpoint",
        expected=f"a folder with {RECORD}, and the files of all ranks",
        found=f"{where}: {what}",
        hint="remove the folder to go on from the checkpoint before it",
    )


def _fsync(path: Path) -> None:
    """Make a file, or a folder's list of names, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
