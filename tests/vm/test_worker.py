"""A process that loads a saved program: what it imports, and what it shares with others."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import meta
from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.model import BatchNorm, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
from meta.model.zoo import BertConfig, BertModel
from meta.vm.save import folder
from tests.conftest import run_python

UNUSED = (
    *("amp", "analysis", "array_api", "cost", "distributed", "frontend", "grad", "interop"),
    *("language", "linalg", "model", "namespace", "optim", "passes", "task", "testing", "train"),
    *("cli", "vm.compilation", "vm.inspect", "vm.run.interpreter", "dialect.tvm.build"),
)
"""Parts of the package that a process that runs saved programs has no use for."""
STRANGERS = ("tvm", "triton", "onnx", "transformers", "tokenizers", "starlette", "pandas", "scipy")
SHAPES = {"cnn": (4, 3, 16, 16), "bert": (2, 16)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a convolutional network and a transformer, their inputs and results."""
    where = tmp_path_factory.mktemp("worker")
    meta.random.seed(1)
    cnn = Sequential(
        *(Conv2d(3, 32, 3, padding=1), BatchNorm(32), ReLU(), MaxPool2d(2), Flatten()),
        Linear(32 * 8 * 8, 10),
    )
    config = BertConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64,
        vocab_size=100,
    )  # fmt: skip
    inputs = {
        "cnn": np.random.default_rng(1).standard_normal(SHAPES["cnn"]).astype("float32"),
        "bert": np.random.default_rng(2).integers(0, 100, SHAPES["bert"]),
    }
    for name, model in (("cnn", cnn), ("bert", BertModel(config))):
        model.eval()
        x = meta.array(inputs[name])
        with meta.dialect.only("torch", "tvm"):
            executable = meta.vm.compile(model, x)
        executable.save(where / name)
        found = executable(x)
        np.save(where / f"{name}.in.npy", inputs[name])
        np.save(where / f"{name}.npy", (found[0] if isinstance(found, tuple) else found).numpy())
    return where


BEGIN = """
import sys, numpy as np, meta
folder, name = sys.argv[1:3]
exe = meta.vm.load(f"{folder}/{name}", mmap=len(sys.argv) > 3)
x, want = meta.array(np.load(f"{folder}/{name}.in.npy")), np.load(f"{folder}/{name}.npy")
def run():
    found = exe(x)
    return (found[0] if isinstance(found, tuple) else found)
np.testing.assert_array_equal(run().numpy(), want)
"""
"""How workers begin."""


def worker(code: str, *arguments: object) -> str:
    """Return what a worker says."""
    return run_python("-c", BEGIN + code, *arguments)


@pytest.mark.product
@pytest.mark.parametrize("mapped", [(), ("mmap",)])
@pytest.mark.parametrize("name", ["cnn", "bert"])
def test_it_imports_what_it_runs(saved: Path, name: str, mapped: tuple[str, ...]) -> None:
    say = "import json; print(json.dumps(sorted(sys.modules)))"
    modules = json.loads(worker(say, saved, name, *mapped))
    unused = [f"meta.{part}" for part in UNUSED] + list(STRANGERS)
    found = [m for m in modules if any(m == u or m.startswith(f"{u}.") for u in unused)]
    assert not found
    families = {m.rpartition(".")[2] for m in modules if m.startswith("meta.dialect.torch.")}
    assert not families & {"optimizer", "vision", "fourier"}
    assert len([m for m in modules if m.partition(".")[0] == "meta"]) < 260


def test_the_rest_comes_when_it_is_named(saved: Path) -> None:
    """Arrays are complete, weights may be written, and what looks at a program is imported then."""
    code = """
assert "meta.grad" not in sys.modules
y = run()
np.testing.assert_array_equal(((y + y) * 0.5)[0].numpy(), want[0])
assert "conv2d" in str(exe.module) and exe.kernels() and exe.memory().peak
before = y.numpy()
(weight,) = [a for a in exe.arrays if a.shape == (32, 3, 3, 3)]
weight.update(weight * 0.0)
changed = run().numpy()
assert np.abs(changed - before).max() > 1e-3
weight.update(weight + 1.0)
assert np.abs(run().numpy() - changed).max() > 1e-3
w = meta.array(np.ones((2, 2), "float32"))
w.requires_grad = True
(w @ w).sum().backward()
print(w.grad.numpy().sum(), meta.optim.SGD.__name__)
"""
    assert worker(code, saved, "cnn").split() == ["16.0", "SGD"]


def test_mapped_weights_are_shared(saved: Path) -> None:
    """Two processes have one copy of them; what one writes, the other does not see."""
    code = """
(weight,) = [a for a in exe.arrays if a.shape == (10, 2048)]
def mapped():
    found, inside = {}, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            inside = line.rstrip().endswith("arrays.safetensors")
        elif inside and len(words) == 3:
            found[words[0][:-1]] = found.get(words[0][:-1], 0) + int(words[1])
    return found
print("ready", flush=True)
sys.stdin.readline()
print(weight.nbytes, *(mapped()[n] for n in ("Rss", "Pss", "Private_Dirty")), flush=True)
sys.stdin.readline()
if name == "writes":
    weight.update(weight * 0.0)
    print(np.abs(run().numpy() - want).max() > 1e-3, mapped()["Private_Dirty"] > 70, flush=True)
else:
    sys.stdin.readline()
    print(np.abs(run().numpy() - want).max() == 0.0, mapped()["Private_Dirty"] == 0, flush=True)
"""
    (saved / "writes").symlink_to("cnn")
    for end in ("in.npy", "npy"):
        (saved / f"writes.{end}").symlink_to(f"cnn.{end}")
    both = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + code, str(saved), name, "mmap"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("cnn", "writes")
    ]
    try:
        says = [process.stdout.readline().split() for process in both]  # type: ignore[union-attr]
        assert says == [["ready"]] * 2
        for process in both:
            tell(process)
            size, *_ = numbers = [int(w) for w in process.stdout.readline().split()]  # type: ignore
            _, rss, pss, dirty = numbers
            assert rss * 1024 >= size and dirty == 0
            assert pss <= 0.6 * rss, "one page, two processes"
        for process in both:
            tell(process)
        assert both[1].stdout.readline().split() == ["True", "True"]  # type: ignore[union-attr]
        tell(both[0])
        assert both[0].stdout.readline().split() == ["True", "True"]  # type: ignore[union-attr]
    finally:
        for process in both:
            process.kill()
            process.communicate()


def tell(process: subprocess.Popen[str]) -> None:
    """Let a process go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_gpu_maps_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = folder.read_folder

    def on_gpu(*args: object, **options: object) -> object:
        program, more = read(*args, **options)  # type: ignore[arg-type]
        return replace(program, device=Device("cuda")), more

    monkeypatch.setattr(folder, "read_folder", on_gpu)
    with pytest.raises(ArgumentError, match="memory of the host"):
        meta.vm.load(saved / "cnn", mmap=True)


@pytest.mark.parametrize("name", ["optim", "frontend", "language", "train", "passes", "array_api"])
def test_a_part_is_imported_by_itself(name: str) -> None:
    code = f"import meta.{name} as part, meta; print(meta.add(1.0, meta.array([2.0])).item())"
    assert run_python("-c", code).strip() == "3.0"


def test_what_is_declared_here_fits_together() -> None:
    """What others register is checked at once; ours here, not in every process."""
    code = """
from meta.base.source import Span
Span.is_own = property(lambda self: False)
import meta
from meta.dialect.core import DIALECTS
for name in ("torch", "cuda"):
    DIALECTS[name].load()
print(len(DIALECTS["torch"].ops) > 300)
"""
    assert run_python("-c", code).strip() == "True"
