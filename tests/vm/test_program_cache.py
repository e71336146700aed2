"""The cache of compiled programs: what is found, what is not, and processes side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base import config
from meta.base.registry import OPERATORS
from meta.dialect.core import DIALECTS, HANDWRITTEN, Dialect
from meta.model import trace
from meta.vm import Executable, PassContext, program_cache

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path / "cache"))
    with config.override(META_PROGRAM_CACHE=True):
        yield


def compiled(by: float = 2.0, **options: Any) -> Executable:
    @trace
    def scaled(x: Any) -> Any:
        return meta.softmax(x * by) + x

    return meta.vm.compile(scaled, x(), **options)


def x() -> meta.ndarray:
    return meta.array(torch.arange(6.0).reshape(2, 3))


def from_cache(exe: Executable) -> bool:
    return not exe.history


def test_the_second_time_nothing_is_compiled() -> None:
    first, second = compiled(), compiled()
    assert not from_cache(first) and from_cache(second)
    assert torch.equal(first(x()).torch(), second(x()).torch())
    assert str(second.code) == str(first.code)
    assert str(second.module) == str(first.module)


def test_what_is_another_program() -> None:
    compiled()
    assert not from_cache(compiled(by=3.0))
    assert not from_cache(compiled(opt_level=0))
    with PassContext(disabled=["simplify"]):
        assert not from_cache(compiled())
    with meta.dialect.exclude("tvm"):
        assert not from_cache(compiled())
    with config.override(META_TF32=True):
        assert not from_cache(compiled())
    assert from_cache(compiled())


@pytest.mark.parametrize(
    "knobs",
    [{"META_CACHE": False}, {"META_PROGRAM_CACHE": False}, {"META_VERIFY": True}],
    ids=str,
)
def test_when_it_is_not_asked(knobs: dict[str, Any]) -> None:
    compiled()
    with config.override(**knobs):
        assert not from_cache(compiled())


def test_parameters_are_those_of_the_model() -> None:
    class Scale(meta.Model):
        def build(self, by: float) -> None:
            self.by = meta.array([by])

        @trace
        def forward(self, x: Any) -> Any:
            return x * self.by

    for by in (2.0, 3.0):
        model = Scale(by)
        exe = meta.vm.compile(model, meta.array([1.0]))
        assert exe(meta.array([1.0])).item() == by
        model.by.update(meta.array([5.0]))
        assert exe(meta.array([1.0])).item() == 5.0
    assert from_cache(exe)


@pytest.mark.parametrize("name", ["manifest.json", "code.json", "program.json"])
def test_a_damaged_entry_is_compiled_anew(name: str, tmp_path: Path) -> None:
    first = compiled()
    (path,) = (tmp_path / "cache" / "programs").rglob(name)
    path.write_text(path.read_text()[:-10])
    again = compiled()
    assert not from_cache(again) and torch.equal(again(x()).torch(), first(x()).torch())
    assert from_cache(compiled())


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    compiled()
    (tmp_path / "cache" / "programs").chmod(0o777)
    assert not from_cache(compiled())


def test_strangers_kernels_are_not_kept() -> None:
    mine = Dialect("cache_test", devices=("cpu",), plevel=HANDWRITTEN)
    try:

        @mine.kernel(OPERATORS["softmax"])
        def softmax(x: Any, axis: Any) -> Any:
            return torch.softmax(x, axis) * 0.0

        for _ in range(2):
            with meta.dialect.only("torch", "cache_test"):
                exe = compiled()
            assert not from_cache(exe) and torch.equal(exe(x()).torch(), x().torch())
    finally:
        OPERATORS["softmax"].aspects.dialect_ops.remove(mine.ops["softmax"])
        DIALECTS.remove("cache_test")
        meta.dialect.core.preference.forget()


def test_its_key_is_stable() -> None:
    @trace
    def plain(x: Any) -> Any:
        return x + 1.0

    program = plain.program(x())
    passes = meta.vm.pipeline.pipeline(x().device)
    keys = {program_cache.key_of(program.module, passes, x().device) for _ in range(2)}
    assert len(keys) == 1 and None not in keys


SCRIPT = """
import hashlib, sys
import torch
import meta

@meta.model.trace
def step(x, w):
    y = meta.tanh(meta.matmul(x, w)) * 0.5
    return meta.softmax(y), meta.sum(y, 0)

torch.manual_seed(0)
x, w = meta.array(torch.randn(8, 16)), meta.array(torch.randn(16, 4))
exe = meta.vm.compile(step, x, w)
bits = b"".join(y.numpy().tobytes() for y in exe(x, w))
print(len(exe.history) > 0, "tvm" in sys.modules, hashlib.sha256(bits).hexdigest())
"""


def start(script: Path, cache: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "META_CACHE_DIR": str(cache),
        "META_PROGRAM_CACHE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def results(processes: list[subprocess.Popen[str]]) -> list[list[str]]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        found.append(out.split())
    return found


def test_a_second_process_needs_no_compiler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (first,) = results([start(script, tmp_path / "shared")])
    (second,) = results([start(script, tmp_path / "shared")])
    assert first[:2] == ["True", "True"] and second[:2] == ["False", "False"]
    assert first[2] == second[2]


def test_eight_processes_at_once_on_an_empty_cache(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = results([start(script, tmp_path / "shared") for _ in range(8)])
    assert len({bits for _, _, bits in found}) == 1
    left = [p.name for p in (tmp_path / "shared").rglob("*") if p.name.endswith((".part", ".old"))]
    assert not left
