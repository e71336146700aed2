"""Kernels run on OpenMP's threads: as many as torch has, with the same results."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest
import torch
import tvm
from tvm import te

from meta.dialect.core import CompiledKernel
from meta.dialect.tvm import build, cache, linker
from meta.dialect.tvm.lower import prim_func

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere TVM's pool is used")
SIZE = 1 << 18


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def doubled() -> CompiledKernel:
    """Return a kernel whose loop is worth several threads."""
    x = te.placeholder((SIZE,), "float32", "x")
    y = te.compute((SIZE,), lambda i: x[i] * 2.0, "y")
    function = prim_func([x], [y])
    return build.build({"doubled": function}, tvm.target.Target({"kind": "llvm"}))["doubled"]


def variable(library: ctypes.CDLL, name: str) -> int | None:
    return ctypes.c_void_p.in_dll(library, name).value


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_threads(count: int) -> None:
    x, y = torch.arange(SIZE, dtype=torch.float32), torch.empty(SIZE)
    torch.set_num_threads(count)
    doubled().run(x, y)
    assert torch.equal(y, 2 * x)


def test_the_library_launches_by_openmp() -> None:
    stored = doubled().artifact
    if stored is None:
        pytest.skip(f"no cache on disk: {cache.status().reason}")
    library = ctypes.CDLL(str(stored.file))
    launch = ctypes.cast(library.meta_launch_parallel, ctypes.c_void_p).value
    assert variable(library, "__TVMBackendParallelLaunch") == launch
    parallel = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    assert variable(library, "meta_omp_parallel") == parallel


def test_without_openmp_the_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = doubled().artifact
    if stored is None:
        pytest.skip(f"no cache on disk: {cache.status().reason}")
    library = ctypes.CDLL(str(stored.file))
    before = variable(library, "__TVMBackendParallelLaunch")
    monkeypatch.setattr(linker, "_functions", lambda: None)
    linker.adopt(stored.file)
    assert variable(library, "__TVMBackendParallelLaunch") == before
