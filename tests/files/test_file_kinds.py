"""Devices, FIFOs and sockets are no files: every reader says so at once, and every writer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import meta
from meta.base import disk_cache
from meta.base.errors import FileError, FormatError, MetaError
from meta.base.files import open_file, read_file
from meta.cli.demo import read_npz
from meta.cli.main import main
from meta.frontend import relay
from meta.frontend.relay.params import read_params
from meta.model import load_weights, save_weights
from meta.model.layers import Linear
from meta.runtime.tensor_file import read_tensors
from meta.train.checkpoint import read_checkpoint
from meta.train.log import CSVLog

SECONDS = 1.0


def _onnx(path: Path) -> Any:
    pytest.importorskip("onnx")
    return meta.frontend.from_onnx(path)


def _index(path: Path) -> Any:
    index = path.with_name("model.safetensors.index.json")
    os.replace(path, index)
    return load_weights(Linear(1, 1), index)


def _parts(path: Path) -> Any:
    index = path.with_name("model.safetensors.index.json")
    index.write_text(f'{{"weight_map": {{"weight": "{path.name}"}}}}')
    return load_weights(Linear(1, 1), index)


def _inside(name: str, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read a folder in which the file of a name is another thing."""

    def reader(path: Path) -> Any:
        folder = path.parent / "folder"
        folder.mkdir()
        os.replace(path, folder / name)
        return read(folder)

    return reader


READERS: dict[str, Callable[[Path], Any]] = {
    "a file": open_file,
    "a whole file": read_file,
    "Relay": relay.load,
    "Relay's parameters": read_params,
    "ONNX": _onnx,
    "tensors": read_tensors,
    "weights": lambda path: load_weights(Linear(1, 1), path),
    "an index of weights": _index,
    "a part of weights": _parts,
    "a manifest": _inside("manifest.json", meta.vm.load),
    "a checkpoint": _inside("checkpoint.json", read_checkpoint),
    "images": lambda path: read_npz(str(path)),
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("kind", [fifo, device, listening])
@pytest.mark.parametrize("name", READERS)
def test_readers(name: str, kind: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "x"
    kind(path)
    if name == "ONNX":
        import_module("meta.frontend.onnx.model")  # takes seconds by itself
    start = time.process_time()
    with pytest.raises((MetaError, OSError)) as caught:
        READERS[name](path)
    assert time.process_time() - start < SECONDS
    if kind is not listening:  # the system itself refuses to open a socket
        assert isinstance(caught.value, FormatError)


def test_the_device_without_end() -> None:
    for read in (relay.load, read_params, read_tensors):
        with pytest.raises(FormatError, match="ordinary files"):
            read("/dev/zero")


def test_larger_than_its_kind_can_be(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    with pytest.raises(FormatError, match="larger than"):
        read_file(path, 1000)


def test_writers_replace_no_device(tmp_path: Path) -> None:
    path = tmp_path / "x"
    fifo(path)
    with pytest.raises(FileError, match="a FIFO"):
        save_weights(Linear(1, 1), path)
    assert path.is_fifo() and [p.name for p in tmp_path.iterdir()] == ["x"]


def test_onnx_data_elsewhere(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="data")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    (tmp_path / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    fifo(tmp_path / "data")
    with pytest.raises(MetaError, match="ordinary files"):
        meta.frontend.from_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize("depth", [20, 30, 90, 200])
def test_onnx_functions_that_double(depth: int) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    last = helper.make_node("Add", ["x", "x"], ["y"])
    functions = [helper.make_function("my", f"f{depth}", ["x"], ["y"], [last], opsets)]
    for i in range(depth):
        twice = [
            helper.make_node(f"f{i + 1}", ["x"], ["t"], domain="my"),
            helper.make_node(f"f{i + 1}", ["t"], ["y"], domain="my"),
        ]
        functions.append(helper.make_function("my", f"f{i}", ["x"], ["y"], twice, opsets))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "ab"]
    call = helper.make_node("f0", ["a"], ["b"], domain="my")
    graph = helper.make_graph([call], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)
    if depth == 20:
        from meta.frontend.onnx.model import require_bounded

        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        require_bounded(model.graph, functions)  # 2**20 nodes are just within
        return
    start = time.process_time()
    with pytest.raises(MetaError, match=r"too many nodes|too deep"):
        meta.frontend.from_onnx(model)
    assert time.process_time() - start < SECONDS


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relay", "info", "/dev/zero"]) == 2
    assert "ordinary files" in capsys.readouterr().err
    log = CSVLog(tmp_path / "log.csv")
    fifo(tmp_path / "log.csv")
    with pytest.raises(MetaError):
        log.open(("step",), 3)
    assert disk_cache.get("things", "nothing") is None
