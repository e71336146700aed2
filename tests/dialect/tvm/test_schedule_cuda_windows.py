"""Pooling and its gradients as CUDA kernels: emulated, beside the oracle; CUDA takes the source.

To add a window, add it to `CASES`: what is called, the type, and the window with the layout.
An ordinary run takes these; a sweep `MORE`, too.
"""

from __future__ import annotations

import re
import shutil

import pytest
import torch

from meta import array, op
from meta.base.dtype import TO_TORCH
from meta.dialect.core.preference import only
from meta.dialect.tvm import cuda_source
from meta.dialect.tvm.schedule_cuda import windows
from meta.op.core.op import by_schema
from meta.runtime.nvrtc import run_nvcc
from meta.testing.emulator import compiler, generated
from meta.testing.emulator.operators import emulated_cuda
from tests.op.pool import avg_pool, gradient, max_pool
from tests.op.resize import resize_dx

SCATTERED = re.compile(r"local\d+_ptr\[[^\]]*\bv_")
"""An element of registers at a place that a vector says: there is no reason for one, and CUDA has
no vectors of eight indices.
"""
CASES = [
    ("max_pool2d_dx", "float16", (2, 8, 12, 8), (2, 2, 0, 1, False), "NHWC"),  # nothing overlaps
    ("max_pool2d_dx", "bfloat16", (1, 9, 11, 8), (3, 2, 1, 1, True), "NHWC"),
    ("avg_pool2d", "float16", (1, 2, 8, 32), ((3, 1), (1, 2), 0, 1, False), "NCHW"),  # with gaps
    ("max_pool1d_dx", "float16", (2, 12, 8), (2, 2, 0, 1, False), "NWC"),
]
MORE = [
    ("max_pool2d", "float16", (1, 7, 9, 8), (3, 2, 1, 1, False), "NHWC"),
    ("max_pool2d_dx", "float32", (1, 9, 6, 4), (2, 2, 0, 1, False), "NHWC"),
    ("max_pool2d_dx", "float16", (1, 2, 7, 16), (2, 1, 0, 2, False), "NCHW"),
    ("avg_pool2d_dx", "float16", (1, 5, 7, 3), ((3, 2), 1, 0, 1, False), "NHWC"),
    ("avg_pool2d", "float64", (1, 6, 7, 8), ((3, 2), (3, 2), 0, 1, False), "NHWC"),
    ("max_pool3d_dx", "float16", (1, 4, 4, 6, 8), (2, 2, 0, 1, False), "NDHWC"),
]


def _run(
    name: str, dtype: str, shape: tuple[int, ...], window: tuple, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernels make, and the oracle. Of few values: windows have several maxima."""
    generator = torch.Generator().manual_seed(0)
    forward = max_pool if name.startswith("max") else avg_pool
    x = torch.randint(0, 4, shape, generator=generator).double()
    y = forward(x, *window, True, layout)
    arguments, oracle = [x], forward
    if name.endswith("_dx"):
        dy = torch.randint(1, 5, y.shape, generator=generator).double()
        arguments, oracle = [x, y, dy], gradient(forward)
    given = [array(a.to(TO_TORCH[dtype])) for a in arguments]
    with emulated_cuda(), only("tvm"):
        found = by_schema(getattr(op, name))(*given, *window, True, layout).torch()
    return found, oracle(*arguments, *window, True, layout)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CUDA source of all that is emulated."""
    compiler.compiler()
    kept: list[str] = []
    original = generated.source.generated

    def generate(text: str) -> tuple[str, list[generated.source.Kernel]]:
        kept.append(text)
        return original(text)

    monkeypatch.setattr(generated.source, "generated", generate)
    return kept


@pytest.mark.parametrize(
    ("case", "filled"),
    [
        pytest.param(
            one, filled,
            id="-".join(map(str, (*one, filled))),
            marks=[pytest.mark.sweep] if filled or one in MORE else [],
        )
        for one in (*CASES, *MORE)
        for filled in (False, True)
    ],
)  # fmt: skip
def test_windows(
    case: tuple, filled: bool, sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """filled: threads have several results each, as they do of arrays that fill a GPU."""
    monkeypatch.setattr(windows, "FILLING", 0 if filled else windows.FILLING)
    found, wanted = _run(*case)
    torch.testing.assert_close(found, wanted.to(found.dtype))
    assert sources and not any(map(SCATTERED.search, sources))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_cuda_takes_windows_that_do_not_overlap(sources: list[str]) -> None:
    _run(*CASES[0])
    for source in sources:
        assert run_nvcc(shutil.which("nvcc"), cuda_source.complete(source), "sm_90")


def test_vectors_that_go_on_along_the_axis_before_the_last() -> None:
    """Rows of two elements: a vector of four is of two rows, which no window's reads are."""
    x, dy = (
        torch.zeros(1, 5, 3, 2),
        torch.randn(1, 7, 2, 2, generator=torch.Generator().manual_seed(0)),
    )
    arguments = (7, 2), "NHWC", "linear", "pytorch_half_pixel"
    with emulated_cuda(), only("tvm"):
        found = op.resize2d_dx(array(x), array(dy), *arguments).torch()
    torch.testing.assert_close(found, resize_dx(x.double(), dy.double(), *arguments).float())
