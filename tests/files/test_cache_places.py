"""A cache that cannot be used, or goes away at any moment, changes no result and no exit status."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conftest import python_process
from tests.files.places import PLACES
from tests.test_readme import README, TOUR, blocks, commands

ROOT = Path(__file__).parents[2]
PROGRAM = """
import resource, sys, torch, meta

@meta.model.trace
def program(x, w):
    return meta.softmax(meta.tanh(meta.matmul(x, w)) + 1.0)

x, w = torch.rand(8, 16), torch.rand(16, 40)
wanted = torch.softmax(torch.tanh(x @ w) + 1.0, -1)
with meta.dialect.prefer("tvm"):
    eager = program(meta.array(x), meta.array(w))
    compiled = meta.vm.compile(program, meta.array(x), meta.array(w))(meta.array(x), meta.array(w))
for found in (eager, compiled):
    torch.testing.assert_close(found.torch(), wanted)
print("right")
"""


def start(
    cache: Path, *arguments: str, limit: int | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own that keeps its caches in a folder."""
    variables = {"META_CACHE_DIR": str(cache), "META_PROGRAM_CACHE": "1", "OMP_NUM_THREADS": "1"}
    if limit is None:
        return python_process(*arguments, cwd=cwd, tvm=True, **variables)

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        preexec_fn=limited,
        timeout=500,
        check=False,
    )


def warned(done: subprocess.CompletedProcess[str]) -> int:
    return done.stderr.count("MetaWarning: what is compiled cannot be kept")


def mostly_slow(names: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Mark all as slow but those that an ordinary run takes: each is a process that compiles."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("place", mostly_slow(PLACES, ["full", "nothing_is_run"]))
def test_the_result_is_right_and_there_is_one_warning(place: str, tmp_path: Path) -> None:
    with PLACES[place](tmp_path / "cache") as where:
        done = start(where, "-c", PROGRAM)
        assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr
        assert warned(done) == 1, done.stderr
        left = [p for p in where.rglob(".*") if p.is_file()] if where.is_dir() else []
        assert not left, left


@pytest.mark.parametrize("limit", mostly_slow([0, 4096, 1 << 20], [4096]))
def test_a_limit_on_the_size_of_files(limit: int, tmp_path: Path) -> None:
    """What would be written past it sends SIGXFSZ or fails: LLVM ends the process then."""
    done = start(tmp_path, "-c", PROGRAM, limit=limit)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr
    assert warned(done) == 1, done.stderr


@pytest.mark.slow
def test_another_user_may_not_read_it(tmp_path: Path) -> None:
    """Root may do everything, so somebody else runs the program."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("only root takes another user's place")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    command = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    environment = {"META_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
    tried = subprocess.run([*command, "-c", "import meta"], env=environment, check=False)
    if tried.returncode != 0:
        pytest.skip("another user cannot import the packages of this one")
    done = subprocess.run(
        [*command, "-c", PROGRAM], env=environment, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr
    assert warned(done) == 1, done.stderr


@pytest.mark.slow
def test_without_a_cache_nobody_is_warned(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    off = "import os; os.environ['META_CACHE'] = '0'\n"
    done = start(tmp_path / "cache", "-c", off + PROGRAM)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "right", "")


GOING = """
import os, shutil, sys
from meta.base import caches
import {module} as module
original = getattr(module, {name!r})

def gone(*args, **options):
    if {after}:
        result = original(*args, **options)
    shutil.rmtree(os.environ["META_CACHE_DIR"], ignore_errors=True)
    if {for_good}:
        open(os.environ["META_CACHE_DIR"], "w").close()
    return result if {after} else original(*args, **options)

setattr(module, {name!r}, gone)
"""
MOMENTS = [
    ("meta.dialect.tvm.cache", "status"),
    ("meta.dialect.tvm.linker", "link"),
    ("meta.dialect.tvm.cache", "_write"),
    ("meta.dialect.tvm.cache", "load_verified"),
    ("meta.dialect.tvm.cache", "load_library"),
    ("meta.dialect.tvm.cache", "load"),
    ("meta.vm.save.program_cache", "write_folder"),
    ("meta.vm.save.program_cache", "read_folder"),
    ("meta.base.caches", "count_written"),
    ("meta.base.caches", "write_atomically"),
]


@pytest.mark.slow
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("module", "name"), MOMENTS)
def test_a_folder_that_goes_away(
    module: str, name: str, after: bool, for_good: bool, tmp_path: Path
) -> None:
    going = GOING.format(module=module, name=name, after=after, for_good=for_good)
    done = start(tmp_path / "cache", "-c", f"import meta\n{going}\n{PROGRAM}")
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr
    assert warned(done) <= 1


SOFTMAX = "def @main(%x: Tensor[(2, 3), float32]) { nn.softmax(%x) }"
MODEL = """
import meta

class Net(meta.Model):
    def build(self):
        self.weight = meta.model.parameter(meta.array([[1.0] * 8] * 64))

    @meta.model.trace
    def forward(self, x):
        return meta.relu(meta.matmul(x, self.weight))
"""


def _relay(folder: Path) -> list[str]:
    program = folder / "program.relay"
    program.write_text('#[version = "0.0.5"]\n' + SOFTMAX)
    return [str(program)]


def _model(folder: Path) -> list[str]:
    (folder / "model.py").write_text(MODEL)
    return [f"{folder / 'model.py'}:Net", "--input", "float32[8, 64]"]


def _inputs(folder: Path) -> str:
    np.savez(folder / "inputs.npz", x=np.zeros((2, 3), "float32"))
    return "inputs.npz"


def _onnx(folder: Path) -> str:
    """Write an ONNX model of one node; return its path."""
    array = partial(onnx.helper.make_tensor_value_info, elem_type=1, shape=(2, 3))
    node = onnx.helper.make_node("Softmax", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "one", [array("x")], [array("y")])
    onnx.save(onnx.helper.make_model(graph), path := str(folder / "model.onnx"))
    return path


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "demo": lambda folder: ["meta", "demo", "--epochs", "2"],
    "op": lambda folder: ["meta", "op", "softmax"],
    "ops": lambda folder: ["meta", "ops"],
    "env": lambda folder: ["meta", "env"],
    "cache": lambda folder: ["meta", "cache"],
    "import": lambda folder: ["meta", "import", _onnx(folder)],
    "compile": lambda folder: ["meta", "compile", *_model(folder)],
    "profile": lambda folder: ["meta", "profile", *_model(folder)],
    "tune": lambda folder: ["meta", "tune", *_model(folder), "--budget", "1s"],
    "relay info": lambda folder: ["meta", "relay", "info", *_relay(folder)],
    "relay run": lambda folder: [
        *("meta", "relay", "run", *_relay(folder)),
        *("--inputs", _inputs(folder), "--out", "results.npz"),
    ],
    "relay convert": lambda folder: ["meta", "relay", "convert", *_relay(folder), "-o", OUT],
    "selftest": lambda folder: [
        *("meta", "selftest", "--op", "softmax", "--dialect", "tvm", "-j", "0"),
    ],
    "pytest": lambda folder: [
        *("pytest", "-q", "-n0", "-p", "no:cacheprovider", "--rootdir", str(ROOT)),
        str(ROOT / "tests" / "vm" / "test_finite.py"),
    ],
}
"""The commands of README.md and of the tour, in short: a module to run and its arguments."""
OUT = "converted"
SAME = ("op", "ops", "relay info")
"""Those that print the same wherever caches are."""
CODE = [pytest.param(code, id=title) for title, code in blocks("python", README, TOUR)]
FAILING = ["full", "read_only", "goes away"]


def test_every_command_of_the_readme_and_the_tour_is_here() -> None:
    """Those that are no programs of the project install it, or start several of its processes."""
    named = {c.split()[0] for c in COMMANDS}
    found = set(re.findall(r"python -m meta ([a-z]+)", README + TOUR))
    lines = commands(README, TOUR)
    started = {part.split()[0] for line in lines for part in line.split(" && ")}
    known = {"python", "pip", "pytest", "torchrun"}
    assert found <= named and started <= known


def started_at(place: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m`` in a folder, with a cache at a place of a name or one that goes away."""
    if place == "goes away":
        writer = {"module": "meta.base.caches", "name": "count_written"}
        going = GOING.format(**writer, after=True, for_good=True)
        run = f"import runpy\nsys.argv = {list(arguments)}\nsys.path.insert(0, '')\n"
        run += f"runpy.run_module({arguments[0]!r}, run_name='__main__', alter_sys=True)"
        return start(folder / "cache", "-c", f"{going}\n{run}", cwd=folder)
    with PLACES[place](folder / "cache") as where:
        return start(where, "-m", *arguments, cwd=folder)


@pytest.mark.parametrize("place", mostly_slow(FAILING, ["full"]))
@pytest.mark.parametrize("command", mostly_slow(COMMANDS, ["compile"]))
def test_commands(command: str, place: str, tmp_path: Path) -> None:
    arguments = COMMANDS[command](tmp_path)
    done = started_at(place, tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout and "Traceback" not in done.stderr
    if command in SAME:
        assert done.stdout == start(tmp_path / "other", "-m", *arguments, cwd=tmp_path).stdout
    if command == "relay run":
        (found,) = np.load(tmp_path / "results.npz").values()
        np.testing.assert_allclose(found, np.full((2, 3), 1 / 3), rtol=1e-6)
    if command == "relay convert":
        code = "import sys, meta; print(meta.vm.load(sys.argv[1])(meta.array([[0.0] * 3] * 2)))"
        done = start(tmp_path / "other", "-c", code, f"{tmp_path}/{OUT}")
        assert done.returncode == 0 and "0.33333" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", FAILING)
@pytest.mark.parametrize("code", CODE)
def test_code(code: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(code, "utf-8")
    done = started_at(place, tmp_path, "block")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("place", mostly_slow(["full", "read_only", "no_inodes"], ["full"]))
def test_relay_convert_to_a_failing_disk(place: str, tmp_path: Path) -> None:
    with PLACES[place](tmp_path / "disk") as where:
        if place == "full":  # but for a page: a folder of few kernels is small
            (where / "other").write_bytes(bytes(56 << 10))
        done = start(
            tmp_path / "cache", "-m", "meta", "relay", "convert", *_relay(tmp_path), "-o",
            str(where / "out"),
        )  # fmt: skip
        assert done.returncode == 2 and str(where / "out") in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert {path.name for path in where.iterdir()} <= {"other"}
