"""CUDA source of several kernels is compiled together, each once, before the first launch."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from meta.base import config
from meta.dialect.core import Deferred, OpEnv, compile_together, compiling
from meta.dialect.cuda import cubin, embedding
from meta.ir.types import TensorType
from meta.runtime import gpu_properties
from meta.runtime.nvrtc import run_nvcc


class Compiler:
    """In place of NVRTC: compiles two at a time, and refuses what has an error in it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.both = threading.Barrier(2, timeout=30)

    def __call__(self, source: str, arch: str) -> bytes:
        self.seen.append(source)
        self.both.wait()
        if "error" in source:
            raise RuntimeError(f"NVRTC refused {source}")
        return f"{arch} {source}".encode()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    made = Compiler()
    monkeypatch.setattr(cubin.nvrtc, "compile_source", made)
    monkeypatch.setattr(cubin.nvrtc, "compiler_version", lambda: (13, 0))
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    cubin.cubins.forget()
    with config.override(META_COMPILE_THREADS=2, META_CACHE_DIR=str(tmp_path)):
        yield made
    cubin.cubins.forget()


def env(*sources: str) -> OpEnv:
    return OpEnv(cubin.deferred(lambda: sources, lambda: sources, 0), False, workspace=64)


def test_kernels_of_a_program_are_compiled_together(compiler: Compiler):
    envs = [env("a", "b"), env("b", "c"), env("d")]
    compile_together(envs)
    assert sorted(compiler.seen) == ["a", "b", "c", "d"]
    assert [one.run() for one in envs] == [("a", "b"), ("b", "c"), ("d",)]
    assert envs[0].workspace_bytes == 64
    assert cubin.cubins(("c", "sm_90")) == b"sm_90 c"
    assert len(compiler.seen) == 4


def test_it_begins_when_a_kernel_is_chosen(compiler: Compiler):
    env("c", "d")
    with compiling():
        made = env("a", "b")
    assert [cubin.cubins((name, "sm_90")) for name in "ab"] == [b"sm_90 a", b"sm_90 b"]
    assert sorted(compiler.seen) == ["a", "b"]
    assert made.run() == ("a", "b")


def test_one_thread_compiles_what_is_needed(compiler: Compiler):
    compiler.both = threading.Barrier(1)
    with config.override(META_COMPILE_THREADS=1):
        made = env("a", "b")
        assert not compiler.seen
        compile_together([made])
    assert compiler.seen == ["a", "b"]


def test_what_is_not_used_for_the_longest_time_is_forgotten(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
):
    compiler.both = threading.Barrier(1)
    monkeypatch.setattr(cubin.cubins.memory, "limit", 2)
    for name in "abac":
        assert cubin.cubins((name, "sm_90")) == f"sm_90 {name}".encode()
    assert list(cubin.cubins.memory.made) == [("a", "sm_90"), ("c", "sm_90")]


def test_what_is_on_disk_is_not_compiled(compiler: Compiler):
    compile_together([env("a", "b")])
    cubin.cubins.forget()
    compile_together([env("a", "b")])
    assert len(compiler.seen) == 2


def test_an_error_is_raised_and_nothing_of_it_is_kept(compiler: Compiler):
    wrong = env("a", "an error")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="an error"):
            compile_together([wrong])
        compiler.both = threading.Barrier(1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvcc_compiles_what_is_written_for_nvrtc(arch: str):
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    table, ids = TensorType((30522, 768), "float16"), TensorType((4096,), "int64")
    made = embedding.gradient(TensorType((4096, 768), "float16"), ids, table, 0)
    assert isinstance(made._deferred, Deferred)
    _, sources, *_ = made._deferred.source
    for text in sources():
        assert run_nvcc(compiler, text, arch)
