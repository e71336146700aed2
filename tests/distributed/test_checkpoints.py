"""Checkpoints of several ranks: what is read, on any mesh, is what was written; and what a rank
that fails, or is killed, leaves behind.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import distributed as dist
from meta.base.errors import DistributedError, FileError, FormatError
from meta.model import Linear, ReLU, Sequential
from meta.optim import with_adafactor, with_adamw, with_lamb, with_lans, with_muon, with_sgd
from meta.runtime.mesh import current_mesh
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement, Split
from meta.runtime.tensor_file import TensorFile
from meta.train import Batches, fit, read_checkpoint
from meta.train.checkpoint import CheckpointFolder
from meta.train.process_group import SINGLE_PROCESS, group_on_mesh
from tests.conftest import run_python
from tests.train.problem import CLASSES, FEATURES, arrays, loss

ROOT = Path(__file__).parents[2]
WHOLE: dict[str, torch.Tensor] = {
    "matrix": torch.arange(48.0).reshape(4, 12),
    "uneven": torch.arange(35, dtype=torch.int16).reshape(7, 5),
    "complex": torch.view_as_complex(torch.arange(24.0, dtype=torch.float64).reshape(12, 2)),
    "half": torch.arange(12).to(torch.bfloat16),
    "number": torch.tensor(3.5, dtype=torch.float64),
    "none": torch.zeros((0, 4)),
}
Splits = tuple[tuple[Any, ...], ...]
# By the mesh: over which axes arrays are split, and along which of their own (None: in a row), in
# which so many arrays are joined, or arrays of these lengths.
MESHES: dict[str, tuple[dict[str, int], dict[str, Splits]]] = {
    "alone": ({}, {}),
    "whole on two": ({"dp": 2}, {}),
    "in parts on two": (
        {"dp": 2},
        dict.fromkeys(("matrix", "uneven", "complex", "half", "number", "none"), (("dp", None),)),
    ),
    "in parts on four": ({"dp": 4}, {"matrix": (("dp", None),), "half": (("dp", 0),)}),
    "on a grid": (
        {"dp": 2, "tp": 3},
        {
            "matrix": (("tp", 1), ("dp", None)),
            "uneven": (("dp", None),),
            "complex": (("tp", 0),),
            "half": (("tp", 0), ("dp", 0)),
            "number": (("tp", None),),
        },
    ),
    "along one axis": (
        {"tp": 2, "dp": 2},
        {"matrix": (("tp", 1, 3),), "half": (("dp", 0, (2, 1)),)},
    ),
}


def held(name: str) -> dict[str, ndarray]:
    """Return what this rank has of all arrays."""
    sizes, splits = MESHES[name]
    found = {}
    for array, whole in WHOLE.items():
        placement = Placement(tuple(whole.shape))
        for over, *along in splits.get(array, ()):
            placement = placement.then(Split(over, sizes[over], *along))
        found[array] = ndarray(placement.part(whole, current_mesh().coordinates))
        found[array].placement = placement
    return found


def on(name: str, function: Any) -> list[Any]:
    """Call a function with the group of a mesh, on each of its ranks."""
    sizes, _ = MESHES[name]

    def rank() -> Any:
        with group_on_mesh(sizes, next(iter(sizes))) as group:
            return function(group)

    return dist.simulate(sizes).run(rank) if sizes else [function(SINGLE_PROCESS)]


def write(folder: Path, name: str, step: int = 1, **more: Any) -> None:
    def rank(group: Any) -> None:
        mine = held(name)
        model = {"matrix": mine.pop("matrix")}
        CheckpointFolder(folder, 2).write(step, model, mine, {"n": group.rank, **more}, group)

    on(name, rank)


@pytest.mark.parametrize("writer", MESHES)
def test_what_is_read_is_what_was_written(writer: str, tmp_path: Path) -> None:
    write(tmp_path, writer)
    found = read_checkpoint(CheckpointFolder(tmp_path, 2).path(1))
    assert found.step == 1 and found.more == {"n": 0}
    read = {**found.model, **found.training}
    assert list(found.model) == ["matrix"] and read.keys() == WHOLE.keys()
    for name, whole in WHOLE.items():
        assert read[name].dtype == whole.dtype and torch.equal(read[name], whole), name
    for reader in MESHES:

        def rank(group: Any, reader: str = reader) -> None:
            stored = CheckpointFolder(tmp_path, 2).newest()
            assert stored is not None
            stored.check(group)
            for name, mine in held(reader).items():
                kind = "model" if name == "matrix" else "training"
                part = stored.part(kind, name, mine.placement, current_mesh().coordinates)
                assert part.dtype == mine.tensor.dtype and torch.equal(part, mine.tensor), name
            same = MESHES[reader][0] == MESHES[writer][0]
            assert stored.state(group) == {"n": group.rank if same else 0}

        on(reader, rank)


@pytest.mark.parametrize("writer", MESHES)
def test_everything_is_written_once(writer: str, tmp_path: Path) -> None:
    """Parts have as many elements as the wholes, but for what fills them up; and the work is shared
    out.
    """
    write(tmp_path, writer)
    folder = CheckpointFolder(tmp_path, 2).path(1)
    files = {p.name: TensorFile(p) for p in folder.glob("*.safetensors")}
    sizes, splits = MESHES[writer]
    assert len([n for n in files if n.startswith("rank")]) == math.prod(sizes.values())
    assert ("model.safetensors" in files) == ("matrix" not in splits)
    elements = dict.fromkeys(WHOLE, 0)
    for name, file in files.items():
        for key in file.names:
            array = key.rpartition("/")[2]
            elements[array] += file[key].numel()
            assert ("/" in key) == name.startswith("rank")
    for array, count in elements.items():
        filled = math.prod(s.size for s in held_placement(writer, array).splits)
        assert 0 <= count - WHOLE[array].numel() < 2 * max(1, filled), array


def held_placement(name: str, array: str) -> Placement:
    found: list[Placement] = []
    on(name, lambda group: found.append(held(name)[array].placement))
    return found[0]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("file", ["model.safetensors", "rank-00001.safetensors"])
def test_damage_is_told_on_all_ranks(file: str, tmp_path: Path) -> None:
    write(tmp_path, "whole on two")
    damage(CheckpointFolder(tmp_path, 2).path(1) / file)

    def rank(group: Any) -> str:
        stored = CheckpointFolder(tmp_path, 2).newest()
        assert stored is not None
        with pytest.raises((FormatError, DistributedError)) as caught:
            stored.check(group)
        return str(caught.value)

    for text in on("whole on two", rank):
        assert f"its file {file} is missing or damaged" in text or "reading a checkpoint" in text
    with pytest.raises(FormatError, match=file):
        read_checkpoint(CheckpointFolder(tmp_path, 2).path(1))


def change(**changes: Any) -> Any:
    return lambda record: record.update(changes)


def of_array(**changes: Any) -> Any:
    return lambda record: record["arrays"]["training/half"].update(changes)


WRONG = {
    "another mesh": change(mesh={"dp": 3}),
    "no mesh": change(mesh=None),
    "a rank's file is not listed": lambda record: record["files"].pop("rank-00001.safetensors"),
    "another section": lambda record: record["arrays"].update({"other/x": {}}),
    "another dtype": of_array(dtype="float3"),
    "a shape that does not fit": of_array(shape=[11], splits=[["dp", 2, 0, 1]]),
    "a negative shape": of_array(shape=[-12]),
    "an axis that is not there": of_array(splits=[["dp", 2, 5, 1]]),
    "a split of another size": of_array(splits=[["dp", 4, None, 1]]),
    "so many arrays that are joined": of_array(splits=[["dp", 2, 0, 5]]),
    "a place that is not there": of_array(at={"dp": 2}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_manifest_that_is_wrong(name: str, tmp_path: Path) -> None:
    """With a good checksum."""
    write(tmp_path, "whole on two")
    path = CheckpointFolder(tmp_path, 2).path(1) / "checkpoint.json"
    record = json.loads(path.read_text())
    del record["checksum"]
    WRONG[name](record)
    path.write_text(json.dumps({**record, "checksum": meta.base.files.checksum(record)}))
    with pytest.raises(FormatError, match=r"checkpoint\.json is damaged"):
        read_checkpoint(path.parent)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_cannot_write(
    victim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own error there, an error that names it elsewhere, and the checkpoint before stays."""
    write(tmp_path, "in parts on four")
    real = meta.train.checkpoint.write_tensors

    def fails(path: Any, tensors: Any) -> None:
        if current_mesh().rank == victim:
            raise OSError(28, "No space left on device")
        real(path, tensors)

    monkeypatch.setattr(meta.train.checkpoint, "write_tensors", fails)

    def rank(group: Any) -> Any:
        mine = held("in parts on four")
        with pytest.raises((FileError, DistributedError)) as caught:
            CheckpointFolder(tmp_path, 2).write(2, {}, mine, {}, group)
        return caught.value

    found = on("in parts on four", rank)
    for number, error in enumerate(found):
        assert isinstance(error, FileError if number == victim else DistributedError)
        assert "No space left" in str(error)
        assert number == victim or f"rank {victim} failed in writing its part" in str(error)
    assert CheckpointFolder(tmp_path, 2).steps() == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_state_that_cannot_be_kept_on_one_rank(tmp_path: Path) -> None:
    def rank(group: Any) -> Any:
        state = {"where": object() if group.rank else 1}
        with pytest.raises((meta.errors.ArgumentError, DistributedError)) as caught:
            CheckpointFolder(tmp_path, 1).write(1, {}, {}, state, group)
        return str(caught.value)

    first, second = on("whole on two", rank)
    assert "where cannot be kept" in second and "rank 1 failed in its state" in first
    assert list(tmp_path.iterdir()) == []


OPTIMIZERS = {
    "adamw": partial(with_adamw, 1e-2, ema=0.9),
    "accumulated": partial(with_sgd, 0.1, momentum=0.9, accumulate=2),
}
RUNS = [
    *[[({"dp": 2}, z), ({}, 0), ({"dp": 4}, z)] for z in (0, 1, 2)],
    [({"dp": 4}, 2), ({"dp": 2}, 1), ({"dp": 4}, 0)],
]


WHOLES = {
    "lamb": partial(with_lamb, 1e-2, ema=0.9),
    "lans": partial(with_lans, 1e-2, accumulate=2),
    "adafactor": partial(with_adafactor, 1e-1),
    "muon": partial(with_muon, 1e-2),
}
"""They look at parameters as a whole."""
CASES = [
    *((name, parts) for name in OPTIMIZERS for parts in RUNS),
    *((name, [({"dp": 2}, 2), ({}, 0), ({"dp": 3}, zero)]) for name in WHOLES for zero in (1, 3)),
]


@pytest.mark.parametrize(("name", "parts"), CASES, ids=str)
def test_a_run_goes_on_with_other_ranks(
    name: str, parts: list[tuple[dict[str, int], int]], tmp_path: Path
) -> None:
    makers = {**OPTIMIZERS, **WHOLES}

    def run(steps: int, sizes: dict[str, int], zero: int, folder: Path | None) -> Any:
        def rank() -> Any:
            meta.random.seed(0)
            net = Sequential(Linear(FEATURES, 5), ReLU(), Linear(5, CLASSES))
            net.to(dtype="float64")
            x, labels = (rows[:36] for rows in arrays())
            over = {"over": "dp", "zero": zero} if sizes else {}
            record = fit(
                net, loss, Batches(x.astype("float64"), labels, 12, seed=1),
                makers[name](**over), steps=steps, checkpoint=folder, mesh=sizes or None,
                executor="interpreter",
            )  # fmt: skip
            state = dist.unshard(record.training_step.state())
            return record.losses, {n: a.numpy() for n, a in state.items()}

        with meta.dialect.only("torch", "gloo") if rank else nullcontext():
            return dist.simulate(sizes).run(rank)[-1] if sizes else rank()

    losses, wanted = run(9, {}, 0, None)
    for steps, (sizes, zero) in zip((3, 6, 9), parts, strict=True):
        found, state = run(steps, sizes, zero, tmp_path)
        np.testing.assert_allclose(found, losses[steps - 3 : steps], 1e-10)
    assert state.keys() == wanted.keys()
    for key, value in state.items():
        np.testing.assert_allclose(value, wanted[key], 1e-9, 1e-12, err_msg=key)


def killed(folder: Path, count: int, kills: int, every: int) -> Any:
    program = ("-m", "tests.distributed.killed_ranks", folder, count, kills, every)
    return json.loads(run_python(*program, OMP_NUM_THREADS="1", META_PROGRESS="off"))


@pytest.mark.parametrize(
    ("count", "kills", "every"),
    [
        (2, 2, 0),
        pytest.param(2, 60, 1, marks=pytest.mark.slow),
        pytest.param(4, 20, 0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_ranks_that_are_killed(count: int, kills: int, every: int, tmp_path: Path) -> None:
    """Nothing is lost that is older than the last checkpoint, and a resumed run ends, bit for bit,
    as one that nobody disturbed. Runs go on in other numbers of processes.
    """
    report = killed(tmp_path, count, kills, every)
    assert report["random"]["kills"] == kills and report["random"]["runs"] > 0
    assert report["random"]["wrong"] == []
    assert report.get("writing", {"wrong": []})["wrong"] == []
    numbers = report["other numbers"]
    assert numbers["apart"] < 1e-10
    assert [len([f for f in files if "rank" in f]) for files in numbers["files"]] == [2, 1, 4]
