"""The kernel cache: hits in other processes, damage, distrust, and machines where it cannot be."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import tvm
from tvm import te

from meta.base import caches, config, disk_cache
from meta.base.device import CPU
from meta.base.errors import MetaWarning
from meta.dialect.tvm import build, cache, linker
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import for_device
from tests.conftest import run_python
from tests.dialect.tvm.functions import tensor

TARGET = for_device(CPU)
ROOT = Path(__file__).parents[3]


def _function(constant: float = 1.0):
    x = tensor(4, 4)
    return prim_func([x], [te.compute((4, 4), lambda i, j: x[i, j] + constant)])


def _works(constant: float = 1.0) -> bool:
    result = torch.empty(4, 4)
    build.kernel(_function(constant), TARGET)(torch.ones(4, 4), result)
    return bool((result == 1 + constant).all())


def _fresh(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Forget this process's kernels; count compilations from here on."""
    compilations: list[int] = []
    original = tvm.compile

    def counting(module, target, **options):
        compilations.append(len(module.functions))
        return original(module, target, **options)

    monkeypatch.setattr(tvm, "compile", counting)
    monkeypatch.setattr(build, "_kernels", {})
    monkeypatch.setattr(cache, "_libraries", {})
    return compilations


def folder() -> Path:
    return caches.cache_folder(cache.CACHE)


def _files(suffix: str) -> list[Path]:
    """Return the libraries (".so") of the cache, or the records of functions ("")."""
    return sorted(f for f in folder().iterdir() if f.suffix == suffix)


def test_memory(monkeypatch):
    compilations = _fresh(monkeypatch)
    first = build.kernel(_function(), TARGET)
    assert build.kernel(_function(), TARGET) is first
    assert compilations == [1]


def test_batch_serves_single_calls(monkeypatch):
    compilations = _fresh(monkeypatch)
    names = {f"f{i}": _function(float(i)) for i in range(5)} | {"again": _function(3.0)}
    kernels = build.build(names, TARGET)
    assert list(kernels) and kernels["again"] is kernels["f3"]
    assert compilations == [5] and len(_files(".so")) == 1
    compilations = _fresh(monkeypatch)
    assert all(_works(float(i)) for i in range(5))
    assert compilations == []


def _elsewhere(constant: float) -> str:
    return (
        "import sys; from tests.dialect.tvm import test_cache as t\n"
        "import tvm; compile_ = tvm.compile; n = []\n"
        "tvm.compile = lambda *a, **k: (n.append(1), compile_(*a, **k))[1]\n"
        f"assert t._works({constant}); print('compilations', len(n))"
    )


def _run_elsewhere(folder: Path, constant: float) -> subprocess.Popen[str]:
    code = _elsewhere(constant)
    environment = {**os.environ, "META_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
    )


def test_other_processes_hit(tmp_path):
    assert _works(5.0)
    printed = run_python("-c", _elsewhere(5.0), tvm=True, META_CACHE_DIR=str(tmp_path))
    assert printed.strip() == "compilations 0"


@pytest.mark.long
def test_processes_at_once(tmp_path):
    processes = [_run_elsewhere(tmp_path, 6.0) for _ in range(3)]
    assert all("compilations" in p.communicate(timeout=120)[0] for p in processes)
    assert not list(folder().glob(".new-*"))


def test_threads_at_once(monkeypatch):
    compilations = _fresh(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: build.kernel(_function(7.0), TARGET), range(8)))
    assert len(set(map(id, kernels))) == 1 and compilations == [1]


def _truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [_truncate, _flip, lambda _: b"", None])
@pytest.mark.parametrize("suffix", [".so", ""])
def test_damage_is_repaired(monkeypatch, damage, suffix):
    assert _works()
    for path in _files(suffix):
        content = path.read_bytes()
        path.unlink()  # this process has the library mapped: leave that file as it is
        if damage is not None:
            path.write_bytes(damage(content))
    compilations = _fresh(monkeypatch)
    assert _works() and compilations == [1]
    compilations = _fresh(monkeypatch)
    assert _works() and compilations == []


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {"library": 2, "symbol": 3},
        {"symbol": "f"},
        {"library": "../../../evil.so"},
        {"library": "/etc/passwd"},
        {"symbol": "a b; c"},
        {"symbol": "absent"},
        {"workspaces": 1},
        {"workspaces": [1]},
        {"workspaces": [[[4, -1], "float32"]]},
        {"workspaces": [[[4], "float33"]]},
    ],
)
def test_foreign_entries_are_ignored(monkeypatch, entry):
    assert _works()
    (path,) = _files("")
    record = json.loads(disk_cache.read(path) or b"")
    changed = json.dumps({**record, **entry} if isinstance(entry, dict) else entry).encode()
    path.write_bytes(changed + hashlib.sha256(changed).digest())
    compilations = _fresh(monkeypatch)
    assert _works() and compilations == [1]


def test_versions_are_part_of_the_key(monkeypatch):
    assert _works()
    compilations = _fresh(monkeypatch)
    monkeypatch.setattr(build, "RULES", "other rules")
    assert _works() and compilations == [1]


def test_switched_off(monkeypatch):
    with config.override(META_CACHE=False):
        assert _works() and not folder().exists()
        assert "META_CACHE" in cache.status().reason


def test_writable_by_others_is_not_trusted(monkeypatch):
    assert _works()
    folder().chmod(0o777)
    compilations = _fresh(monkeypatch)
    with pytest.warns(MetaWarning, match="others may write"):
        assert _works() and compilations == [1]
    assert "others may write" in cache.status().reason
    folder().chmod(0o700)
    for path in _files(".so"):
        path.chmod(0o666)
    compilations = _fresh(monkeypatch)
    assert _works() and compilations == [1]


def test_another_owner_is_not_trusted(monkeypatch):
    assert _works()
    compilations = _fresh(monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:  # the administrator's files are trusted
        os.chown(folder(), 54321, -1)
    with pytest.warns(MetaWarning, match="another user"):
        assert _works() and compilations == [1]
    assert "another user" in cache.status().reason


def test_read_only_folder(monkeypatch):
    """Root may write anywhere, so the answer of the system is replaced as well."""
    assert _works(1.0)
    folder().chmod(0o500)
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: mode != os.W_OK and access(p, mode))
    compilations = _fresh(monkeypatch)
    assert _works(1.0) and compilations == []
    with pytest.warns(MetaWarning, match="read-only"):
        assert _works(2.0) and compilations == [1]
    assert _works(2.5)  # one warning is enough
    assert cache.status().readable and "read-only" in cache.status().reason
    folder().chmod(0o700)


def test_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with config.override(META_CACHE_DIR=str(tmp_path / "file")):
        with pytest.warns(MetaWarning, match="cannot be made"):
            assert _works(3.0)
        assert "cannot be made" in cache.status().reason


def test_no_linker(monkeypatch):
    monkeypatch.setattr(linker, "command", lambda: None)
    with pytest.warns(MetaWarning, match="no linker"):
        assert _works(4.0)
    assert "linker" in cache.status().reason and not cache.status().writable


def test_broken_linker(monkeypatch):
    monkeypatch.setattr(linker, "command", lambda: ("false",))
    with pytest.warns(MetaWarning, match="writing failed"):
        assert _works(4.5)
    assert "writing failed" in cache.status().reason


def test_compiler_where_there_is_no_bare_linker(monkeypatch):
    linker.command.cache_clear()
    monkeypatch.setattr(linker, "_LINKERS", ())
    try:
        compilations = _fresh(monkeypatch)
        assert _works(8.0)
        compilations.clear()
        monkeypatch.setattr(build, "_kernels", {})
        assert _works(8.0) and compilations == []
    finally:
        linker.command.cache_clear()


@pytest.mark.parametrize("times", [1, 2])
def test_another_process_makes_room(monkeypatch, times):
    """A library that is taken away before it is loaded is written again; twice, it is not kept."""
    compilations, loads, original = _fresh(monkeypatch), list[Path](), cache.load_library

    def load(file):
        loads.append(file)
        if len(loads) <= times:
            file.unlink()
        return original(file)

    monkeypatch.setattr(cache, "load_library", load)
    assert _works(9.0) and len(compilations) == times
    assert len(loads) == 2 and len(_files(".so")) == 2 - times
    assert cache.status().writable
    monkeypatch.setattr(build, "_kernels", {})
    assert _works(9.0) and (compilations == [1]) == (times == 1)


def test_clear(monkeypatch):
    assert _works()
    caches.clear(["kernels"])
    compilations = _fresh(monkeypatch)
    assert _works() and compilations == [1]
