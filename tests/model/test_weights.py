"""State by name, and weights on disk: a file that does not fit changes nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import meta
from meta.base.errors import ArgumentError, FormatError
from meta.model import BatchNorm, Conv2d, Linear, Model, Sequential, load_weights, save_weights
from meta.testing import check


def network() -> Model:
    return Sequential(Conv2d(1, 2, 3), BatchNorm(2), Linear(2, 3))


def values(model: Model) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in model.state().items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a)


def test_state_and_parameters() -> None:
    model = network()
    names = [*model.state()]
    assert names == [
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
        "2.weight", "2.bias",
    ]  # fmt: skip
    assert [*model.parameters()] == [n for n in names if "running" not in n]


def test_load_state_writes_in_place_from_any_array() -> None:
    model = Linear(2, 1)
    w, b = model.weight, model.bias
    compiled = meta.vm.compile(model, meta.array([[1.0, 1.0]]))
    model.load_state({"weight": torch.tensor([[2.0, 3.0]]), "bias": np.array([1.0])})
    assert (model.weight is w, model.bias is b) == (True, True)
    assert w.requires_grad
    assert b.dtype == "float32"
    assert compiled(meta.array([[1.0, 1.0]])).item() == 6.0


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"weight": np.ones((1, 2))}, "missing: ['bias']"),
        ({"weight": np.ones((1, 2)), "bias": np.ones(1), "c": np.ones(1)}, "unknown: ['c']"),
        ({"weight": np.ones((1, 2)), "bias": np.ones(2)}, "'bias' has another shape"),
    ],
)
def test_a_state_that_does_not_fit(state: dict[str, np.ndarray], says: str) -> None:
    model = Linear(2, 1)
    before = values(model)
    with pytest.raises(FormatError) as caught:
        model.load_state(state)
    assert says in str(caught.value)
    assert same(values(model), before)


def test_a_part_of_a_state() -> None:
    model = Linear(2, 1)
    model.load_state({"bias": [7.0], "unknown": [1.0]}, strict=False)
    assert model.bias.item() == 7.0


def test_there_and_back(tmp_path: Path) -> None:
    model, other = network(), network()
    path = tmp_path / "weights.safetensors"
    save_weights(model, path)
    assert [p.name for p in tmp_path.iterdir()] == ["weights.safetensors"]
    load_weights(other, str(path))
    assert same(values(model), values(other))
    assert safetensors.torch.load_file(path).keys() == model.state().keys()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes_are_kept(tmp_path: Path, dtype: str) -> None:
    model, other = Linear(2, 2).to(dtype=dtype), Linear(2, 2).to(dtype=dtype)
    save_weights(model, tmp_path / "w")
    load_weights(other, tmp_path / "w")
    assert other.weight.dtype == dtype
    check(other.weight, model.weight, 0, 0)


def test_arrays_that_share_memory_can_be_saved(tmp_path: Path) -> None:
    model = Model()
    model.all = meta.array([1.0, 2.0, 3.0])
    model.first = meta.ndarray(model.all.torch()[:2])
    model.flipped = meta.ndarray(torch.ones(2, 3).T)
    save_weights(model, tmp_path / "w")
    assert safetensors.torch.load_file(tmp_path / "w")["first"].tolist() == [1.0, 2.0]


def test_saving_replaces_a_file_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_weights(Linear(1, 1), path)
    save_weights(Linear(2, 2), path)
    assert safetensors.torch.load_file(path)["weight"].shape == (2, 2)
    with pytest.raises(FileNotFoundError):
        save_weights(Linear(1, 1), tmp_path / "no" / "such" / "folder")


def header(**tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated data": lambda data: data[:-1],
    "truncated header": lambda data: data[:20],
    "too much data": lambda data: data + b"\0",
    "another format": lambda _: b"\x80\x04\x95" + b"pickle" * 20,
    "a huge header": lambda data: struct.pack("<Q", 2**62) + data[8:],
    "no json": lambda data: data[:8] + b"\xff" * 10 + data[18:],
    "offsets outside": lambda _: header(
        weight={"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}
    ),
    "a huge shape": lambda _: header(
        weight={"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}
    ),
    "a foreign dtype": lambda _: (
        header(weight={"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}) + b"\0"
    ),
    "other names": lambda _: (
        header(v={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}) + b"\0" * 4
    ),
    "other shapes": lambda _: (
        header(
            weight={"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            bias={"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
        )
        + b"\0" * 24
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_or_foreign_file(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    model = Linear(2, 2)
    before = values(model)
    path = tmp_path / "weights.safetensors"
    save_weights(Linear(2, 2), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FormatError):
        load_weights(model, path)
    assert same(values(model), before)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FormatError, match="cannot be read as safetensors"):
            load_weights(Linear(1, 1), path)


def test_to_changes_floats_in_place_and_keeps_sharing() -> None:
    model = Sequential(Linear(2, 2), Linear(2, 2))
    getattr(model, "1").weight = getattr(model, "0").weight
    getattr(model, "0").table = meta.array([1, 2])
    assert model.to(dtype="float64") is model
    first, second = getattr(model, "0"), getattr(model, "1")
    assert first.weight is second.weight
    assert first.weight.requires_grad
    assert first.table.dtype == "int64"
    assert model(meta.array(np.ones((1, 2)))).dtype == "float64"
    for wrong in ("int32", "float23"):
        with pytest.raises(ArgumentError):
            model.to(dtype=wrong)
    with pytest.raises(meta.errors.DeviceError):
        model.to(device="cuda:77")
