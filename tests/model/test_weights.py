"""State by name, and weights on disk: a file that does not fit changes nothing."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import meta
from meta.base.errors import ArgumentError, FileError, FormatError
from meta.model import (
    BatchNorm,
    Conv2d,
    Embedding,
    Linear,
    Model,
    Sequential,
    load_weights,
    save_weights,
)
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
    assert [*dict(model.named_parameters())] == [n for n in names if "running" not in n]


def test_load_state_writes_in_place_from_any_array() -> None:
    model = Linear(2, 1)
    w, b = model.weight, model.bias
    compiled = meta.vm.compile(model, meta.array([[1.0, 1.0]]))
    model.load_state_dict({"weight": torch.tensor([[2.0, 3.0]]), "bias": np.array([1.0])})
    assert (model.weight is w, model.bias is b) == (True, True)
    assert w.requires_grad
    assert b.dtype == "float32"
    assert compiled(meta.array([[1.0, 1.0]])).item() == 6.0


def failure(model: Model, state: dict[str, object], strict: bool = True) -> str:
    """Return the error of a load, which must leave the model as it was."""
    before = values(model)
    with pytest.raises(FormatError) as caught:
        model.load_state_dict(state, strict=strict)
    assert same(values(model), before)
    return str(caught.value)


def test_all_that_does_not_fit_is_told_at_once() -> None:
    state = {"0.wieght": np.ones((2, 1, 3, 3)), "1.weight": np.ones(3), "2.bias": np.ones((3, 1))}
    state |= {n: a for n, a in values(network()).items() if n not in ("0.weight", *state)}
    del state["1.bias"], state["2.weight"]
    text = failure(network(), {**state, "qqq": np.ones(1)})
    assert "missing: '0.weight', '1.bias', '2.weight'\n" in text
    assert "unknown: '0.wieght' (the model has '0.weight'" in text
    assert ", 'qqq'\n" in text
    assert "'1.weight' has another shape: (3,), the model's is (2,)" in text
    assert "'2.bias' has another shape: (3, 1), the model's is (3,)" in text
    assert "strict=False" in text


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        (lambda n: f"network.{n}", "remove the prefix 'network.'"),
        (lambda n: n.removeprefix("inner."), "add the prefix 'inner.'"),
    ],
)
def test_a_prefix_is_recognised(rename: Callable[[str], str], says: str) -> None:
    model = Model()
    model.inner = network()
    assert says in failure(model, {rename(n): a for n, a in values(model).items()})


@pytest.mark.parametrize(
    ("of", "into", "says"),
    [("", "inner.", "add the prefix 'inner.': 6 of the"), ("inner.", "", "remove the prefix 'inn")],
)
def test_a_prefix_of_most_names_is_recognised_and_nothing_is_not_loaded_silently(
    of: str, into: str, says: str
) -> None:
    def with_head(prefix: str, head: str) -> Model:
        model = outer = Sequential(*(Linear(1, 1) for _ in range(3)))
        if prefix:
            outer = Model()
            outer.inner = model
        setattr(outer, head, Linear(1, 1))
        return outer

    state = values(with_head(of, "old"))
    for strict in (True, False):
        assert says in failure(with_head(into, "new"), state, strict=strict)
    assert with_head("", "new").load_state_dict({}, strict=False).missing


def test_long_lists_are_cut() -> None:
    model = Sequential(*(Linear(1, 1) for _ in range(30)))
    text = failure(model, {f"other.{i}": np.ones(1) for i in range(100)})
    assert "and 20 more" in text
    assert "and 60 more" in text


def test_a_part_of_a_state() -> None:
    model = Linear(2, 1)
    left = model.load_state_dict({"bias": [7.0], "unknown": [1.0]}, strict=False)
    assert left == (("weight",), ("unknown",))
    assert model.bias.item() == 7.0
    with pytest.raises(FormatError, match="another shape"):
        model.load_state_dict({"bias": [7.0, 1.0]}, strict=False)


class Tied(Model):
    """A table that is also the last layer's weight, and that layer under a second name."""

    def build(self) -> None:
        self.table, self.head = Embedding(3, 2), Linear(2, 3)
        self.head.weight = self.table.weight
        self.again = [self.head]


TIED = ["table.weight", "head.bias"]
ALIASES = ["table.weight", "head.weight", "head.bias", "again.0.weight", "again.0.bias"]


def test_tied_arrays_have_one_name_and_are_accepted_under_any() -> None:
    model = Tied()
    assert sorted(model.state()) == sorted(TIED)
    assert sorted(model.state_dict()) == sorted(ALIASES)
    bias, weight = np.ones(3), np.arange(6.0).reshape(3, 2)
    for name in ALIASES:
        if name.endswith("weight"):
            model.load_state_dict({name: weight, "again.0.bias": bias})
            assert (model.table.weight.numpy() == weight).all()
            model.table.weight.update(np.zeros((3, 2)))
    weight[0] = np.nan
    model.load_state_dict({n: weight if n.endswith("weight") else bias for n in ALIASES})
    assert (model.table.weight.numpy()[1:] == weight[1:]).all()
    text = failure(Tied(), {"table.weight": weight, "head.weight": -weight, "head.bias": bias})
    assert "['table.weight', 'head.weight'] are one array here, and differ" in text


class Renamed(Model):
    not_kept = ("position_ids",)
    renamed = ((r"^layer\.(\d+)\.gamma$", r"layers.\1.weight"), (r"^old_", ""))

    def build(self) -> None:
        self.layers, self.x = [Linear(1, 1, bias=False)], meta.array([1.0])


@pytest.mark.parametrize("prefix", ["", "inner."])
def test_names_of_older_versions(prefix: str) -> None:
    model = outer = Renamed()
    if prefix:
        outer = Model()
        outer.inner = model
    state = {"layer.0.gamma": [[3.0]], "old_x": [4.0], "position_ids": [1, 2]}
    outer.load_state_dict({prefix + n: v for n, v in state.items()})
    assert (model.layers[0].weight.item(), model.x.item()) == (3.0, 4.0)
    text = failure(model, {**state, "layers.0.weight": [[5.0]]})
    assert "'layer.0.gamma', 'layers.0.weight'] are one array here, and differ" in text
    assert "'old_x' has another shape" in failure(model, {**state, "old_x": [4.0, 5.0]})


def test_a_model_in_a_circle_has_names() -> None:
    model = Model()
    model.inner, model.inner.outer, model.inner.x = Model(), model, meta.array([1.0])
    model.outer = None
    assert [*model.state()] == ["inner.x"]


class TorchTied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3)
        self.head.weight = self.table.weight
        self.again = torch.nn.ModuleList([self.head])


def torch_network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 3)
    )


@pytest.mark.parametrize(
    ("ours", "theirs"), [(network, torch_network), (Tied, TorchTied)], ids=["batch norm", "tied"]
)
def test_states_are_exchanged_with_torch(
    tmp_path: Path, ours: Callable[[], Model], theirs: Callable[[], torch.nn.Module]
) -> None:
    model, module, path = ours(), theirs(), tmp_path / "model.safetensors"
    # The state dict has num_batches_tracked, and each name of a tied tensor.
    model.load_state_dict(module.state_dict())
    assert all((model.state()[n].torch() == module.state_dict()[n]).all() for n in model.state())
    module = theirs()
    module.load_state_dict({n: a.torch() for n, a in model.state_dict().items()})
    save_weights(model, path)
    assert safetensors.torch.load_model(theirs(), path, strict=True) == (set(), [])
    safetensors.torch.save_model(module, path)
    load_weights(model, path)
    expected = module.state_dict()
    assert all((a.torch() == expected[n]).all() for n, a in model.state_dict().items())


@pytest.mark.parametrize("own", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("found", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_converted(tmp_path: Path, own: str, found: torch.dtype) -> None:
    model = Linear(3, 4).to(dtype=own)
    given = {"weight": torch.randn(4, 3).to(found), "bias": torch.tensor([1e-9, 1e5, 3.0, -0.1])}
    safetensors.torch.save_file(given, tmp_path / "w")
    load_weights(model, tmp_path / "w")
    for name, array in model.state().items():
        assert array.dtype == own
        assert torch.equal(array.torch(), torch.empty_like(array.torch()).copy_(given[name]))


def parts(folder: Path, model: Model) -> Path:
    """Save a model's state as two files and an index."""
    state = {n: a.torch() for n, a in model.state().items()}
    names, index = [*state], folder / "model.safetensors.index.json"
    files = {n: f"part-{i % 2}.safetensors" for i, n in enumerate(names)}
    for file in set(files.values()):
        safetensors.torch.save_file({n: state[n] for n in names if files[n] == file}, folder / file)
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


@pytest.mark.parametrize("found", [torch.int32, torch.int64, torch.bool, torch.uint8])
def test_integers_are_no_weights(tmp_path: Path, found: torch.dtype) -> None:
    model = Linear(2, 1, bias=False)
    before = model.weight.numpy()
    given = {"weight": torch.ones(1, 2).to(found)}
    safetensors.torch.save_file(given, tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match=r"'weight' has another kind of numbers: .*float32"):
        load_weights(model, tmp_path / "w.safetensors")
    np.testing.assert_array_equal(model.weight.numpy(), before)
    model.load_state_dict({"weight": [[1, 2]]})  # Python's numbers have no dtype of their own
    np.testing.assert_array_equal(model.weight.numpy(), [[1, 2]])


def test_a_file_in_parts(tmp_path: Path) -> None:
    model, other = network(), network()
    load_weights(other, parts(tmp_path, model))
    assert same(values(model), values(other))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"a": 1}}', "\x00",
        '{"weight_map": {"a": "../up.safetensors"}}', '{"weight_map": {"a": "none.safetensors"}}',
        '{"weight_map": {"a": "part-0.safetensors"}}',
    ],
)  # fmt: skip
def test_a_damaged_index(tmp_path: Path, text: str) -> None:
    model = network()
    before, index = values(model), parts(tmp_path, network())
    index.write_text(text)
    with pytest.raises(FormatError):
        load_weights(model, index)
    assert same(values(model), before)


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
    with pytest.raises(FileError):
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
    with pytest.raises(FormatError, match="cannot be read as safetensors"):
        load_weights(Linear(1, 1), tmp_path / "nothing")
    with pytest.raises(FormatError, match=r"holds no weights[^$]*model.safetensors or"):
        load_weights(Linear(1, 1), tmp_path)


def test_a_folder_as_transformers_write_it(tmp_path: Path) -> None:
    model, whole, divided = network(), network(), network()
    index = parts(tmp_path, model)
    index.rename(tmp_path / "model.safetensors.index.json")
    load_weights(divided, tmp_path)
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(whole, tmp_path)
    assert same(values(model), values(whole)) and same(values(model), values(divided))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "weights.pth"])
def test_a_pickle_is_not_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"a pickle[^$]*torch.load\(path, weights_only=True\)"):
        load_weights(Linear(1, 1), tmp_path / name)


def test_to_changes_floats_in_place_and_keeps_sharing() -> None:
    model = Sequential(Linear(2, 2), Linear(2, 2))
    getattr(model, "1").weight = getattr(model, "0").weight
    getattr(model, "0").table = meta.array([1, 2])
    assert model.to(dtype="float64") is model
    assert {a.dtype for a in model.to("float32").parameters()} == {"float32"}
    assert next(model.to("cpu").to("float64").parameters()).dtype == "float64"
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


def test_parameters_that_are_frozen_stay_parameters() -> None:
    model = Sequential(Linear(2, 2), meta.model.BatchNorm(2))
    names = [n for n, _ in model.named_parameters()]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for array in model.parameters():
        array.requires_grad = False
    for one in (model, copy.deepcopy(model), model.to("float64")):
        assert [n for n, _ in one.named_parameters()] == names
        assert not any(array.requires_grad for array in one.parameters())
    with pytest.raises(ArgumentError, match="nothing to train"):
        meta.optim.SGD(model.parameters(), 0.1)
    for array in model.parameters():  # thawed
        array.requires_grad = True
    model.train()(meta.ones((3, 2), "float64")).sum().backward()
    assert all(array.grad is not None for array in model.parameters())
    assert not (next(model.parameters()) * 2.0).trainable


def test_arrays_by_name_are_saved_as_a_model_is(tmp_path: Path) -> None:
    model, other = network(), network()
    path = tmp_path / "weights.safetensors"
    save_weights(model.state_dict(), path)
    load_weights(other, path)
    assert same(values(model), values(other))
    one = torch.arange(3.0)
    save_weights({"a": one, "b": one, "c": np.ones(2, "float16")}, path)
    found = safetensors.torch.load_file(path)
    assert found.keys() == {"a", "c"}
    assert found["a"].tolist() == [0.0, 1.0, 2.0]
    assert found["c"].dtype == torch.float16


def test_weights_of_no_model(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(ArgumentError, match=r"save_weights\(model, path\)"):
        save_weights(str(path), network())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"load_weights\(model, path\)"):
        load_weights(network().state_dict(), path)  # type: ignore[arg-type]
    assert not path.exists()
