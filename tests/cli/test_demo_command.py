"""``python -m meta demo``, with settings that take a moment, and the files that it is given."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed
from meta.base import config
from meta.base.errors import FormatError
from meta.cli.demo import Images, SmallNet, load, read_npz, train
from meta.cli.main import main
from meta.model import load_weights, sync_batch_norm
from tests.conftest import first_on_path

ROOT = Path(__file__).parents[2]
PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def stripes(count: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return images that are easy to tell apart: which third of the rows is bright."""
    generator = np.random.default_rng(0)
    y = np.arange(count) % 3
    x = generator.normal(0, 10, (count, *shape))
    for i, label in enumerate(y):
        rows = np.array_split(np.arange(shape[-2]), 3)[label]
        x[i, ..., rows, :] += 100
    return {"x": x, "y": y}


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the demo and return its report."""
    capsys.readouterr()
    assert main(["demo", "--json", *arguments]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    result: dict[str, Any] = json.loads(streams.out)
    return result


def test_digits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights = tmp_path / "digits.safetensors"
    with config.override(META_PROGRESS="off"):
        report = report_of(capsys, "--epochs", "2", "--out", str(weights))
    assert report["accuracy"] > 0.9
    assert report["reloaded"] == {"accuracy": report["accuracy"], "identical": True}
    assert sum(report["kernels"].values()) > 10
    load_weights(SmallNet((1, 8, 8), 10), weights)


def test_interpreter_and_vm_learn_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # 3 channels; 12 rows shrink to more than the network's grid, 6 columns to less.
    np.savez(tmp_path / "images.npz", **stripes(60, (3, 12, 6)))
    common = ("--epochs", "3", "--batch-size", "16", "--data", str(tmp_path / "images.npz"))
    with config.override(META_PROGRESS="off"):
        vm, interpreter = (
            report_of(capsys, *common, "--executor", e) for e in ("vm", "interpreter")
        )
    assert vm["data"]["image"] == [3, 12, 6] and vm["data"]["classes"] == 3
    assert vm["accuracy"] == interpreter["accuracy"] == 1
    assert vm["loss"] == pytest.approx(interpreter["loss"], rel=1e-3)


def test_text_and_progress(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Fewer images than a batch, of the smallest size; integers without a channel axis.
    images = stripes(10, (3, 2))
    np.savez_compressed(tmp_path / "i.npz", x=images["x"].astype("int16"), y=images["y"])
    with config.override(META_PROGRESS="on"):
        assert main(["demo", "--epochs", "1", "--data", str(tmp_path / "i.npz")]) == 0
    streams = capsys.readouterr()
    assert "training" in streams.err
    assert "test accuracy" in streams.out and "exactly the same scores" in streams.out


def test_split_depends_on_the_seed_alone() -> None:
    one, same, other = (load(None, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.x_test, same.x_test)
    assert not np.array_equal(one.y_test, other.y_test)
    assert len(one.y_train) + len(one.y_test) == 1797
    assert abs(one.x_train.mean()) < 1e-4 and one.x_train.dtype == np.float32


class WithoutScikitLearn(MetaPathFinder):
    """Finds nothing, and ends the search for scikit-learn."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_without_scikit_learn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutScikitLearn(), *sys.meta_path])
    assert main(["demo"]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and "Traceback" not in streams.err
    assert "pip install scikit-learn" in streams.err and "--data" in streams.err


def _refuses(path: Path, what: str | None = None) -> None:
    with pytest.raises(FormatError, match=what) as error:
        read_npz(str(path))
    assert "x, numbers of shape" in str(error.value)


GOOD = stripes(9, (4, 4))


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": GOOD["x"]},
        {**GOOD, "x": GOOD["x"][0]},
        {**GOOD, "x": GOOD["x"].astype("complex64")},
        {**GOOD, "x": GOOD["x"].astype("str")},
        {**GOOD, "x": GOOD["x"][:, :1]},
        {**GOOD, "x": np.full((9, 4, 4), np.nan)},
        {**GOOD, "x": np.full((9, 4, 4), 1e300)},
        {**GOOD, "x": GOOD["x"][:8]},
        {**GOOD, "y": GOOD["y"].astype("float32")},
        {**GOOD, "y": GOOD["y"] - 1},
        {**GOOD, "y": GOOD["y"] * 1000},
        {**GOOD, "y": GOOD["y"] * 0},
        {"x": np.zeros((0, 4, 4)), "y": np.zeros(0, "int64")},
        {**GOOD, "y": np.array([print] * 9, dtype=object)},
    ],
)
def test_wrong_arrays(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", **arrays)
    _refuses(tmp_path / "wrong.npz")


def test_file_that_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    _refuses(path, "cannot be read")
    path.write_bytes(b"not an archive")
    _refuses(path, "cannot be read")
    with path.open("wb") as file:
        np.save(file, GOOD["x"])
    _refuses(path, "cannot be read")


@pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
def test_damaged_archive(compress: Any, tmp_path: Path) -> None:
    """Whatever byte is lost or changed, the file is read, or refused in our words."""
    path = tmp_path / "file.npz"
    compress(path, **stripes(9, (3, 2)))
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for position in generator.choice(len(whole), 300, replace=False):
        changed = bytearray(whole)
        changed[position] ^= 1 << generator.integers(8)
        for damaged in (bytes(changed), whole[:position]):
            path.write_bytes(damaged)
            try:
                x, y = read_npz(str(path))
            except FormatError:
                continue
            assert x.shape == (9, 1, 3, 2) and y.shape == (9,)


def test_announced_size_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000, 1000), }\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    _refuses(tmp_path / "huge.npz", "too large")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", "abacus"], "abacus"),
        (["--data", "absent.npz"], "absent.npz"),
        (["--out", "no/such/folder/w.safetensors"], "no/such/folder"),
    ],
)
def test_errors_are_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert message in streams.err and "Traceback" not in streams.err


def losses(images: Images, ranks: int | None) -> list[float]:
    """Train the demo's network on this rank; return the losses."""
    meta.random.seed(0)
    network = SmallNet(images.shape, images.classes)
    if ranks is not None:
        sync_batch_norm(network)
    with meta.dialect.only("torch", "gloo"):
        return train(network, images, 6, 64, 0, "interpreter", ranks).losses


def test_ranks_train_as_one() -> None:
    images = load(None, 0)
    alone = losses(images, None)
    for found in distributed.simulate(2).run(losses, images, 2):
        np.testing.assert_allclose(found, alone, 1e-5)


@pytest.mark.slow
def test_two_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What `torchrun --standalone --nproc-per-node 2 -m meta demo` does, for an epoch."""
    weights = tmp_path / "digits.safetensors"
    demo = ("-m", "meta", "demo", "--json", "--epochs", "1")
    done = subprocess.run(
        [sys.executable, *PROCESSES, *demo, "--out", str(weights)],
        capture_output=True,
        text=True,
        env=first_on_path(ROOT) | {"OMP_NUM_THREADS": "1", "META_PROGRESS": "off"},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)  # of one process
    assert report["settings"]["processes"] == 2
    assert report["kernels"]["gloo.all_reduce"] > 0
    with config.override(META_PROGRESS="off"):
        alone = report_of(capsys, "--epochs", "1")
    assert report["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert report["accuracy"] == pytest.approx(alone["accuracy"], abs=0.02)
    load_weights(SmallNet((1, 8, 8), 10), weights)
