"""Checkpoints: what is read is what was written, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, FormatError
from meta.model import Linear
from meta.optim import with_adam, with_sgd
from meta.train import fit, read_checkpoint
from meta.train.checkpoint import CheckpointFolder
from meta.train.json_state import from_json, to_json
from meta.train.random_state import capture, fork_rng, restore
from tests.train import problem
from tests.train.problem import CLASSES, FEATURES, held_out, loss, network, same


def written(folder: Path) -> Path:
    model = {"w": meta.arange(3.0)}
    training = {"step": meta.array(7), "half": meta.ones((2,), "bfloat16")}
    return CheckpointFolder(folder, 2).write(7, model, training, {"where": (1, {"a": b"\x00"})})


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    found = read_checkpoint(written(tmp_path))
    assert found.step == 7 and found.more == {"where": (1, {"a": b"\x00"})}
    assert found.model["w"].tolist() == [0, 1, 2]
    assert found.training["step"].item() == 7 and found.training["half"].dtype == torch.bfloat16
    newest = CheckpointFolder(tmp_path, 2).newest()
    assert newest is not None and newest.step == 7
    assert CheckpointFolder(tmp_path / "new", 2).newest() is None


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "checkpoint.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def truncate(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        os.truncate(folder / name, (folder / name).stat().st_size - 1)

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "model cut": (truncate("model.safetensors"), "model.safetensors is missing or damaged"),
    "training cut": (truncate("rank-00000.safetensors"), "rank-00000.safetensors is missing or d"),
    "record cut": (truncate("checkpoint.json"), "checkpoint.json cannot be read"),
    "no model": (lambda p: (p / "model.safetensors").unlink(), "model.safetensors is missing"),
    "no record": (lambda p: (p / "checkpoint.json").unlink(), "checkpoint.json cannot be read"),
    "a list": (lambda p: (p / "checkpoint.json").write_text("[]") and None, "something else"),
    "deep": (
        lambda p: (p / "checkpoint.json").write_text("[" * 10**5) and None,
        "cannot be read",
    ),
    "other schema": (edit(schema="other"), "of something else"),
    "later version": (edit(version=3), "another version of the format"),
    "step changed": (edit(step=8), "was changed"),
    "files changed": (edit(files={}), "was changed"),
    "binary": (lambda p: (p / "checkpoint.json").write_bytes(b"\xff\xfe") and None, "cannot be"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told(name: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[name]
    folder = written(tmp_path)
    damage(folder)
    with pytest.raises(FormatError, match=message) as caught:
        newest = CheckpointFolder(tmp_path, 2).newest()
        assert newest is not None
        newest.read()
    assert str(folder) in str(caught.value)


def train(folder: Path, steps: int, width: int = CLASSES, optimizer: Any = None) -> Any:
    return fit(
        Linear(FEATURES, width),
        loss,
        held_out(),
        optimizer or with_sgd(0.1, 0.9),
        steps=steps,
        checkpoint=folder,
        executor="interpreter",
    )


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    train(tmp_path, 1)
    with pytest.raises(FormatError, match="'weight' of the model has another type"):
        train(tmp_path, 2, width=CLASSES + 1)
    with pytest.raises(FormatError, match="the optimizer has other arrays"):
        train(tmp_path, 2, optimizer=with_adam(0.1))
    train(tmp_path, 2)


OPTIMIZERS = [getattr(meta.optim, name) for name in dir(meta.optim) if name.startswith("with_")]


@pytest.mark.parametrize("maker", OPTIMIZERS, ids=lambda maker: maker.__name__)
def test_every_optimizer_goes_on_where_it_was(maker: Any, tmp_path: Path) -> None:
    whole = problem.train(network(), steps=6, optimizer=maker(0.01), seed=1)
    problem.train(network(), steps=3, optimizer=maker(0.01), seed=1, checkpoint=tmp_path)
    rest = problem.train(network(1), steps=6, optimizer=maker(0.01), checkpoint=tmp_path)
    assert rest.first_step == 3 and same(whole.training_step, rest.training_step)


def test_one_run_writes_to_a_folder(tmp_path: Path) -> None:
    with (
        CheckpointFolder(tmp_path, 2).locked(),
        pytest.raises(ArgumentError, match="another run writes its checkpoints here"),
    ):
        train(tmp_path, 1)
    train(tmp_path, 1)


def test_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".step-00000001.part").mkdir()
    train(tmp_path, 1)
    assert {p.name for p in tmp_path.iterdir()} == {"notes.txt", ".lock", "step-00000001"}


def test_state_that_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"where\['a'\]\[1\] cannot be kept"):
        CheckpointFolder(tmp_path, 1).write(1, {}, {}, {"where": {"a": [1, object()]}})
    assert list(tmp_path.iterdir()) == []


STATES = [
    None, True, 3, 2.5, "text", b"", b"\xff", [1, [2]], (1, (2, "x")), {}, {"a": {"b": ()}},
    {1: "int keys", (2, 3): None}, {"$odd": 1}, float("inf"),
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=repr)
def test_plain_state(state: Any) -> None:
    found = from_json(json.loads(json.dumps(to_json(state, "state"))))
    assert found == state and type(found) is type(state)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64", "float64", "bool", "complex64"])
def test_arrays_of_numpy_in_state(dtype: str) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)
    found = from_json(json.loads(json.dumps(to_json(value, "state"))))
    assert found.dtype == value.dtype and np.array_equal(found, value)
    assert to_json(np.float32(0.5), "state") == 0.5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.bool])
def test_tensors_in_state(dtype: torch.dtype) -> None:
    for value in (torch.arange(6).reshape(2, 3).to(dtype), torch.empty(0, 2).to(dtype)):
        found = from_json(json.loads(json.dumps(to_json(value, "state"))))
        assert found.dtype == dtype and torch.equal(found, value)


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": "%"},
        {"$other": 1},
        {"$tuple": 1},
        {"$tensor": {"dtype": "float32", "shape": [3], "data": ""}},
        {"$tensor": {"dtype": "no", "shape": [0], "data": ""}},
        {"$numpy": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"$dict": [[1]]},
        {"$tuple": [], "more": 1},
    ],
    ids=str,
)
def test_damaged_state(value: Any) -> None:
    with pytest.raises(FormatError, match="this state is damaged"):
        from_json(value)


def draws() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_state_is_put_back() -> None:
    state = json.loads(json.dumps(to_json(capture([torch.Generator()]), "random")))
    first = draws()
    with fork_rng():
        draws()
    second = draws()
    restore(from_json(state), [torch.Generator()])
    assert (draws(), draws()) == (first, second)
    with pytest.raises(FormatError, match="does not fit"):
        restore(from_json(state))
    with pytest.raises(FormatError, match="does not fit"):
        restore({"generators": []})
