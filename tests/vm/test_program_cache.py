"""The cache of compiled programs: what is found, what is not, and processes side by side."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base import caches, config
from meta.base.errors import MetaWarning
from meta.base.registry import OPERATORS
from meta.base.source import Span
from meta.dialect.core import DIALECTS, HANDWRITTEN, Dialect
from meta.model import trace
from meta.vm import Executable, PassContext
from meta.vm.save import program_cache
from tests.conftest import run_python

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


def test_constants_are_of_the_program() -> None:
    def added(*values: float) -> Executable:
        constant = meta.array(torch.tensor(values))
        return meta.vm.compile(trace(lambda x: x + constant), meta.array([0.0, 0.0]))

    added(1.0, 2.0)
    assert from_cache(added(1.0, 2.0)) and not from_cache(added(1.0, 3.0))


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


def test_a_strangers_pattern_or_kernel_for_what_a_pass_may_put_in() -> None:
    """The program names neither."""
    shipped, sqrt = DIALECTS["torch"], OPERATORS["sqrt"]
    compiled()
    try:

        @shipped.pattern(lambda x: meta.op.exp(meta.op.sqrt(x)))
        def cache_test(x: Any) -> Any:
            return x

        assert not from_cache(compiled())
    finally:
        del shipped.patterns["cache_test"]
    assert from_cache(compiled())
    kernel = sqrt.aspects.dialect_ops[0]
    try:
        sqrt.aspects.dialect_ops[0] = copy(kernel)
        sqrt.aspects.dialect_ops[0].site = Span(__file__, 1)
        assert not from_cache(compiled())
    finally:
        sqrt.aspects.dialect_ops[0] = kernel


def test_a_full_disk_or_a_folder_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(meta.vm.save.folder, "write_tensors", full)
        with pytest.warns(MetaWarning, match="No space left") as warned:
            assert torch.equal(compiled()(x()).torch(), compiled(opt_level=0)(x()).torch())
        assert len(warned) == 1
    compiled()
    with monkeypatch.context() as m:  # between the manifest and the code
        m.setattr(
            meta.vm.save.folder, "read_tensors", lambda path: shutil.rmtree(path.parent) or {}
        )
        assert not from_cache(compiled())


def test_a_cache_that_can_only_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    compiled()
    for name in ("utime", "mkdir", "rename"):
        monkeypatch.setattr(os, name, refuse)
    assert from_cache(compiled())
    with pytest.warns(MetaWarning, match="Read-only file system"):
        assert not from_cache(compiled(by=3.0))


def test_the_programs_used_last_stay(tmp_path: Path) -> None:
    where = tmp_path / "cache" / "programs"
    compiled(by=1.0)
    compiled(by=2.0)
    for folder in where.glob("*/*"):
        os.utime(folder, (1, 1))
    assert from_cache(compiled(by=1.0))  # it is the one used last
    old = min(where.glob("*/*"), key=lambda p: p.stat().st_mtime)
    caches.trim(caches.total_bytes() - 1)
    assert not old.exists() and from_cache(compiled(by=1.0)) and not from_cache(compiled(by=2.0))


def test_a_program_outlives_its_entry(tmp_path: Path) -> None:
    compiled()
    exe = compiled()
    shutil.rmtree(tmp_path / "cache" / "programs")
    assert from_cache(exe) and "softmax" in str(exe.module)


@pytest.mark.parametrize("name", ["manifest.json", "code.json", "program.txt"])
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
    with pytest.warns(MetaWarning, match="others may write"):
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
    passes = meta.vm.compiler.pipeline.pipeline(x().device)
    keys = {program_cache.key_of(program.module, passes, x().device) for _ in range(2)}
    assert len(keys) == 1 and None not in keys


SCRIPT = """
import hashlib, os, sys
import torch
import meta

def write(text):
    os.write(1, (text + "\\n").encode())

def fork(count):
    children = []
    import tvm
    for _ in range(count):
        child = os.fork()
        if child == 0:
            return
        children.append(child)
    os._exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))

fork(int(sys.argv[1])) if len(sys.argv) > 1 else None

@meta.model.trace
def step(x, w):
    y = meta.tanh(meta.matmul(x, w)) * 0.5
    return meta.softmax(y), meta.sum(y, 0)

torch.manual_seed(0)
x, w = meta.array(torch.randn(8, 16)), meta.array(torch.randn(16, 4))
exe = meta.vm.compile(step, x, w)
bits = b"".join(y.numpy().tobytes() for y in exe(x, w))
write(f"{len(exe.history) > 0} {'tvm' in sys.modules} {hashlib.sha256(bits).hexdigest()}")
if len(sys.argv) > 1:
    os._exit(0)
"""


def results(script: Path, cache: Path, *arguments: str) -> list[list[str]]:
    """Run a script; return the words of each line that it wrote."""
    caches = {"META_CACHE_DIR": str(cache), "META_PROGRAM_CACHE": "1"}
    printed = run_python(script, *arguments, OMP_NUM_THREADS="1", **caches)
    return [line.split() for line in printed.splitlines()]


@pytest.mark.long
def test_eight_processes_at_once_and_a_ninth_that_needs_no_compiler(tmp_path: Path) -> None:
    script, cache = tmp_path / "script.py", tmp_path / "shared"
    script.write_text(SCRIPT)
    found = results(script, cache, "8")  # forks, which pay for the imports once
    assert len(found) == 8 and len({bits for _, _, bits in found}) == 1
    assert "True" in {compiled for compiled, _, _ in found}
    assert not [p.name for p in cache.rglob("*") if p.name.endswith((".part", ".old"))]
    (ninth,) = results(script, cache)
    assert ninth == ["False", "False", found[0][2]]
