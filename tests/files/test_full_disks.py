"""What is saved to a disk that is full, or goes: a FileError, and what was there before stays."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import FileError
from meta.base.files import writing
from meta.model import save_weights
from meta.model.layers import Linear
from meta.passes.manager import Dump
from meta.runtime.tensor_file import read_tensors, write_tensors
from meta.train.checkpoint import CheckpointFolder
from meta.train.log import CSVLog, JSONLog
from tests.files.places import full, no_inodes, read_only

SMALL, LARGE = {"w": torch.zeros(100)}, {"w": torch.zeros(1 << 16)}
FEW, MANY = {"w": meta.zeros(100)}, {"w": meta.zeros(1 << 16)}


def test_checkpoints(tmp_path: Path) -> None:
    with full(tmp_path / "disk") as disk:
        kept = CheckpointFolder(disk / "run", keep=3)
        kept.write(1, FEW, FEW, {"position": 1})
        before = sorted(p.name for p in (disk / "run").rglob("*"))
        with pytest.raises(FileError, match=str(disk / "run")) as caught:
            kept.write(2, MANY, FEW, {})
        assert "make room" in str(caught.value) and isinstance(caught.value, OSError)
        assert sorted(p.name for p in (disk / "run").rglob("*")) == before
        found = kept.newest()
        assert found is not None and found.step == 1 and found.more == {"position": 1}
        kept.write(3, FEW, FEW, {})  # there is room for a small one again
        assert kept.steps() == [1, 3]


def test_a_checkpoint_where_only_the_record_has_no_room(tmp_path: Path) -> None:
    with full(tmp_path / "disk") as disk:
        kept = CheckpointFolder(disk / "run", keep=1)
        kept.write(1, FEW, FEW, {})
        with pytest.raises(FileError):
            kept.write(2, FEW, FEW, {"text": "x" * (1 << 16)})
        assert kept.steps() == [1] and kept.newest() is not None


def test_a_folder_of_checkpoints_that_goes(tmp_path: Path) -> None:
    kept = CheckpointFolder(tmp_path / "run", keep=1)
    (tmp_path / "run").rmdir()
    with pytest.raises(FileError, match="run"):
        kept.write(1, FEW, FEW, {})


def test_tensors_replace_nothing(tmp_path: Path) -> None:
    with full(tmp_path / "disk") as disk:
        write_tensors(disk / "w", SMALL)
        with pytest.raises(FileError, match=str(disk / "w")):
            write_tensors(disk / "w", LARGE)
        assert read_tensors(disk / "w")["w"].shape == (100,)
        assert [p.name for p in disk.iterdir()] == ["w"]


@pytest.fixture(scope="module")
def executable() -> Any:
    @meta.model.trace
    def program(x: Any) -> Any:
        return meta.softmax(x * 2.0)

    with meta.dialect.prefer("torch"):
        return meta.vm.compile(program, meta.array([[1.0, 2.0]]))


def _log(kind: Any) -> Callable[[Path, Any], None]:
    def write(where: Path, _: Any) -> None:
        log = kind(where / "log")
        log.open(("step", "time"), 0)
        try:
            for step in range(20000):
                log.write({"step": step, "time": 0.1})
            log.flush()
        finally:
            log.close()

    return write


SAVERS: dict[str, Callable[[Path, Any], Any]] = {
    "an executable": lambda where, exe: exe.save(where / "program"),
    "weights": lambda where, _: save_weights(Linear(200, 200), where / "w.safetensors"),
    "rows": _log(CSVLog),
    "lines": _log(JSONLog),
    "programs": lambda where, exe: [
        Dump(str(where / "dump")).write("pass", 0.0, exe.module) for _ in range(200)
    ],
}


@pytest.mark.parametrize("place", [full, no_inodes, read_only])
@pytest.mark.parametrize("name", SAVERS)
def test_savers(name: str, place: Any, executable: Any, tmp_path: Path) -> None:
    if place is no_inodes and name in ("weights", "rows", "lines"):
        pytest.skip("one file fits")
    with place(tmp_path / "disk") as disk:
        if place is full:
            (disk / "filling").write_bytes(b"0" * (60 << 10))
        with pytest.raises(meta.MetaError) as caught:
            SAVERS[name](disk, executable)
        assert str(disk) in str(caught.value)
        assert ".part" not in str(caught.value).splitlines()[0]
        left = [p.name for p in disk.rglob("*") if p.name.endswith(".part") or ".new-" in p.name]
        assert not left


def test_the_error_is_one_of_the_system_too(tmp_path: Path) -> None:
    with full(tmp_path / "disk") as disk, pytest.raises(OSError) as caught, writing(disk / "p"):
        (disk / "p").write_bytes(b"0" * (1 << 20))
    assert caught.value.errno == errno.ENOSPC
