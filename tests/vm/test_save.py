"""Executables in folders: same bits in another process; damage raises; other machines rebuild."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, FormatError, MetaError
from meta.dialect.core.catalog import DIALECTS
from meta.ir import parse_type, structural_equal
from meta.model import trace, value_and_grad
from meta.model.zoo import LeNet
from meta.op.core import tree
from meta.vm import load
from tests.conftest import run_python
from tests.model.networks import MLP, Encoder, WithLoss

ROOT = Path(__file__).parents[2]
RUN = """
import sys, torch, meta
folder, inputs, outputs = sys.argv[1:]
from meta.op.core import tree
from safetensors.torch import load_file, save_file
given = load_file(inputs)
args = [meta.array(given[str(i)]) for i in range(len(given))]
leaves, _ = tree.flatten(meta.vm.load(folder)(*args))
save_file({str(i): a.torch().contiguous() for i, a in enumerate(leaves)}, outputs)
print("tvm" in sys.modules, "tests" in sys.modules)
"""


@pytest.fixture(autouse=True)
def all_kernels() -> Any:
    """This folder's tests run on torch's kernels; these take TVM's as well."""
    with meta.dialect.only("torch", "tvm"):
        yield


def inputs(*shapes: tuple[int, ...]) -> list[meta.ndarray]:
    generator = torch.Generator().manual_seed(1)
    return [meta.array(torch.randn(shape, generator=generator)) for shape in shapes]


def elsewhere(folder: Path, args: list[meta.ndarray], tmp_path: Path) -> tuple[list[Any], str]:
    """Run a saved program in a new process; return its arrays, and what the process says."""
    from_here, to_here = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    meta.runtime.tensor_file.write_tensors(
        from_here, {str(i): a.torch() for i, a in enumerate(args)}
    )
    said = run_python("-c", RUN, folder, from_here, to_here, cwd=tmp_path, META_CACHE="0")
    found = meta.runtime.tensor_file.read_tensors(to_here)
    return [found[str(i)] for i in range(len(found))], said.strip()


@trace
def sums(x: Any, times: Any) -> Any:
    return meta.while_loop(
        lambda s: meta.less(s[0], times), lambda s: (s[0] + 1, meta.tanh(s[1] + x)), (times * 0, x)
    )


def network() -> tuple[Any, list[meta.ndarray]]:
    return LeNet().eval(), inputs((2, 1, 28, 28))


def training_step() -> tuple[Any, list[meta.ndarray]]:
    labels = meta.array(torch.tensor([1, 2]))
    return value_and_grad(WithLoss(Encoder(16, 2))), [
        meta.array(1.0),
        *inputs((2, 5, 16)),
        labels,
    ]


def loop() -> tuple[Any, list[meta.ndarray]]:
    return sums, [*inputs((3,)), meta.array(torch.tensor(4))]


@pytest.mark.parametrize("make", [network, training_step, loop])
def test_another_process_gets_the_same_bits(make: Any, tmp_path: Path) -> None:
    model, args = make()
    exe = meta.vm.compile(model, *args)
    expected, _ = tree.flatten(exe(*args))
    exe.save(tmp_path / "program")
    found, said = elsewhere(tmp_path / "program", args, tmp_path)
    assert said == "False False"  # neither a compiler nor the model's source was imported
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other.torch())


@trace
def mixed(x: Any) -> Any:
    """Kernels of both dialects: a library's product, and one that is generated."""
    return meta.softmax(meta.matmul(x, meta.permute_dims(x)) * 0.5 + 1.0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "program"
    with meta.dialect.only("torch", "tvm"):
        meta.vm.compile(mixed, *inputs((2, 5))).save(folder)
    return folder


def test_it_is_called_as_the_model_was(tmp_path: Path) -> None:
    @trace
    def scaled(x: Any, options: Any, *, power: int = 2) -> Any:
        y = x * options["by"]
        return {"y": y * y if power == 2 else y, "pair": (x, [y])}

    x, by = inputs((3,), (3,))
    exe = meta.vm.compile(scaled, x, {"by": by})
    exe.save(tmp_path / "program")
    again = load(tmp_path / "program")
    expected, found = scaled(x, {"by": by}), again(x, options={"by": by}, power=2)
    assert isinstance(found["pair"], tuple) and isinstance(found["pair"][1], list)
    assert torch.equal(found["y"].torch(), expected["y"].torch())
    with pytest.raises(meta.errors.TraceError, match="another structure"):
        again(x, {"by": by}, power=3)
    with pytest.raises(ArgumentError, match="cannot be called like this"):
        again(x)


def test_it_has_parameters_of_its_own(tmp_path: Path) -> None:
    model = MLP()
    step = meta.optim.with_sgd(0.1, 0.9)(WithLoss(model))
    x, labels = inputs((2, 5))[0], meta.array(torch.tensor([3, 4]))
    exe = meta.vm.compile(step, meta.array(1.0), x, labels)
    exe.save(tmp_path / "program")
    again = load(tmp_path / "program")
    before = [a.numpy().copy() for a in exe.arrays]
    losses = [again(meta.array(1.0), x, labels).item() for _ in range(5)]
    assert losses[-1] < losses[0]
    assert all((a.numpy() == b).all() for a, b in zip(exe.arrays, before, strict=True))
    expected = [exe(meta.array(1.0), x, labels).item() for _ in range(5)]
    assert losses == expected


def test_symbolic_dimensions_and_their_ranges(tmp_path: Path) -> None:
    exe = meta.vm.compile(MLP().eval(), parse_type("float32[n, 5]"), dims={"n": (1, 4)})
    exe.save(tmp_path / "program")
    again = load(tmp_path / "program")
    for n in (1, 4):
        (x,) = inputs((n, 5))
        assert torch.equal(again(x).torch(), exe(x).torch())
    with pytest.raises(ArgumentError, match="out of range"):
        again(*inputs((5, 5)))


def test_the_program_can_be_read(saved: Path) -> None:
    exe = load(saved)
    assert structural_equal(exe.module, load(saved).module)
    assert "softmax" in str(exe.module) and "k0" in str(exe.code) and exe.explain()


def test_saving_again_replaces(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    assert len(load(folder).arrays) == 0
    meta.vm.compile(MLP().eval(), *inputs((1, 5))).save(folder)
    assert len(load(folder).arrays) == 4
    assert [p.name for p in tmp_path.iterdir()] == ["program"]


def test_a_folder_of_other_things_stays(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "thesis.txt").write_text("...")
    with pytest.raises(ArgumentError, match="something else"):
        load(saved).save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "..."


def test_an_argument_that_is_no_literal(tmp_path: Path) -> None:
    class Options:
        scale = 2.0

    options = Options()

    @trace
    def scaled(x: Any, options: Any) -> Any:
        return x * options.scale

    exe = meta.vm.compile(scaled, *inputs((3,)), options)
    with pytest.raises(ArgumentError, match="Options"):
        exe.save(tmp_path / "program")
    assert not list(tmp_path.iterdir())


# Damage.


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edited(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncated, edited, Path.unlink])
@pytest.mark.parametrize(
    "name", ["manifest.json", "code.json", "program.txt", "arrays.safetensors", "kernels"]
)
def test_damage_raises(saved: Path, tmp_path: Path, damage: Any, name: str) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    path = files(folder / name)[0] if name == "kernels" else folder / name
    damage(path)
    with pytest.raises(FormatError) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no compiled program"):
        load(tmp_path / "absent")


def test_a_folder_of_another_format_says_how_to_convert_it(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    sealed({**json.loads((folder / "manifest.json").read_text()), "version": 1}, folder)
    with pytest.raises(FormatError, match="written by another version") as caught:
        load(folder)
    assert "compile the model and save it once more" in str(caught.value.hint)


def test_a_forged_program(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    program = (folder / "program.txt").read_text()
    (folder / "program.txt").write_text(program.replace("return", "retrun", 1))
    sealed(json.loads((folder / "manifest.json").read_text()), folder)
    loaded = load(folder)
    with pytest.raises(FormatError, match="cannot be read") as caught:
        str(loaded.module)
    assert str(caught.value.span).startswith("program.txt:")


def sealed(manifest: dict[str, Any], folder: Path) -> None:
    """Write a manifest with right hashes: what is wrong then is what it says."""
    manifest["files"] = {
        n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in manifest["files"]
    }
    manifest.pop("checksum", None)
    text = json.dumps(manifest, sort_keys=True)
    manifest["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def at(document: Any, *path: Any) -> Any:
    for step in path:
        document = document[step]
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("device",), "cuda:63"),
        (("device",), "tpu"),
        (("version",), 99),
        (("schema",), "other"),
        (("kernels",), []),
        (("kernels", 0), {"file": "../../evil.so"}),
        (("kernels", 1), {"file": "x.so", "symbol": 1}),
        (("more",), None),
        (("more", "parameters"), [{"name": "1x", "kind": "KEYWORD_ONLY"}]),
        (("more", "arguments"), {"dict": [["x"]]}),
        (("more", "result"), {"object": "os.system"}),
        (("environments",), []),
    ],
)
def test_a_forged_manifest(saved: Path, tmp_path: Path, path: Any, value: Any) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    at(manifest, *path[:-1])[path[-1]] = value
    sealed(manifest, folder)
    with pytest.raises(MetaError):
        load(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 0),
        (("entry",), "absent"),
        (("params",), []),
        (("params", 0), ["x", "float33[2]"]),
        (("result",), 1),
        (("functions", "main", "registers"), 1 << 60),
        (("functions", "main", "registers"), 1),
        (("functions", "main", "params"), 1000),
        (("functions", "main", "blocks"), []),
        (("functions", "main", "blocks", 0), []),
        (("functions", "main", "blocks", 0, 0), ["Evaluate", "1 + 1"]),
        (("functions", "main", "blocks", 0, 0), ["Jump", 0]),
        (("functions", "main", "blocks", 0, 0), ["LoadConstant", 0, 99]),
        (("functions", "main", "blocks", 0, -1), ["Return", 10**9]),
        (("functions", "main", "blocks", 0, -1), ["Return"]),
        (("kernels", 0), {"operator": "torch.dense"}),
        (("kernels", 0), {"operator": "torch.absent", "args": []}),
        (("kernels", 0, "args", 0), {"literal": "__import__('os')"}),
        (("dims",), [["n", 0, 1]]),
    ],
)
def test_forged_code(saved: Path, tmp_path: Path, path: Any, value: Any) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    code = json.loads((folder / "code.json").read_text())
    at(code, *path[:-1])[path[-1]] = value
    (folder / "code.json").write_text(json.dumps(code))
    sealed(json.loads((folder / "manifest.json").read_text()), folder)
    with pytest.raises(MetaError):
        load(folder)(*inputs((2, 5)))


# Other machines.


def test_another_compiler_or_processor_rebuilds(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["environments"]) == {"tvm"}
    manifest["environments"]["tvm"] = "apache-tvm 0.28, some other processor"
    sealed(manifest, folder)
    restored: list[str] = []
    monkeypatch.setattr(DIALECTS["tvm"], "restore", lambda artifact: restored.append(artifact))
    (x,) = inputs((2, 5))
    expected = load(saved, rebuild=True)(x)
    assert torch.equal(load(folder)(x).torch(), expected.torch()) and not restored


def test_rebuilding_runs_no_code_of_the_folder(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(saved, folder)
    for path in files(folder / "kernels"):
        path.write_bytes(b"not a library")
    (x,) = inputs((2, 5))
    assert torch.equal(load(folder, rebuild=True)(x).torch(), load(saved)(x).torch())


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_executable_is_not_pickled(copied: Any) -> None:
    executable = meta.vm.compile(trace(lambda x: x + 1), meta.ones((2,)))
    with pytest.raises(ArgumentError, match=r"executable.save\(folder\)"):
        copied(executable)
