"""Kernels of Triton on a GPU: results, strides and odd addresses, CUDA graphs, streams, offsets of
64 bits, saved programs, and the host time of a launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import meta
from meta import op
from meta.base.device import Device
from meta.dialect import only
from meta.dialect.triton import TritonDialect
from meta.dialect.triton.sequence import TritonLaunch
from tests.dialect.triton import kernels
from tests.registered import remove_dialects

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("tested")]
NAME = "tested"
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-7}
BYTES = 20 << 30


@triton.jit
def bitwise_invert(x, out, numel, index_dtype: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(index_dtype) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, ~tl.load(x + at, mask=at < numel), mask=at < numel)


@triton.jit
def multiply(x1, x2):
    return x1 * x2


@triton.jit
def described(x, out, n, BLOCK: tl.constexpr):
    rows = tl.make_tensor_descriptor(
        x, shape=[n, BLOCK], strides=[BLOCK, 1], block_shape=[8, BLOCK]
    )
    to = tl.make_tensor_descriptor(
        out, shape=[n, BLOCK], strides=[BLOCK, 1], block_shape=[8, BLOCK]
    )
    row = tl.program_id(0) * 8
    to.store([row, 0], rows.load([row, 0]) * 2)


@pytest.fixture(scope="module")
def tested() -> Iterator[TritonDialect]:
    dialect = TritonDialect(NAME)
    kernels.register(dialect)
    dialect.kernel(op.bitwise_invert, grid=kernels.flat, configs=[{"BLOCK": 1024}])(bitwise_invert)
    dialect.pointwise(op.multiply)(multiply)
    yield dialect
    remove_dialects(dialect)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(33, 1000), (1, 1), (7, 64), (4, 8192)])
def test_strides_and_addresses(dtype: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    compact = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    flat = torch.randn(shape[0] * shape[1] + 1, device="cuda").to(compact.dtype)
    wide = torch.randn(shape[0], 2 * shape[1], device="cuda").to(compact.dtype)
    turned = torch.randn(shape[1], shape[0], device="cuda").to(compact.dtype)
    for x in (compact, flat[1:].view(shape), wide[:, ::2], wide[:, 1::2], turned.T):
        with only(NAME):
            y = meta.softmax(meta.array(x)).torch()
            positive = meta.relu(meta.array(x)).torch()
            product = meta.multiply(meta.array(x), meta.array(x[:1])).torch()
        error = TOLERANCE[dtype]
        expected = torch.softmax(x.double(), 1)
        torch.testing.assert_close(y.double(), expected, rtol=error, atol=error)
        assert torch.equal(positive, x.relu()) and torch.equal(product, x * x[:1])


def test_empty_and_0d() -> None:
    number = meta.array(torch.tensor(-3.0, device="cuda"))
    nothing = meta.array(torch.zeros(0, 3, device="cuda"))
    with only(NAME):
        assert meta.relu(number).item() == 0.0 and meta.relu(nothing).shape == (0, 3)
        assert meta.multiply(number, number).item() == 9.0


def test_every_configuration_is_measured() -> None:
    x = meta.array(torch.randn(1000, device="cuda"))
    with only(NAME):
        costs = meta.measure(op.relu, x, iters=3)
    ran = [cost for cost in costs if cost.dialect == NAME]
    assert len(ran) == 3 and not any(cost.refused for cost in ran)


def test_programs_are_recorded_saved_and_loaded(tmp_path: Path) -> None:
    @meta.model.trace
    def model(x: Any) -> Any:
        for _ in range(3):  # a graph pays from 4 kernels on
            x = meta.softmax(meta.relu(x))
        return x

    x = meta.array(torch.randn(16, 64, device="cuda"))
    with only(NAME):
        run = meta.vm.compile(model, x)
    assert run.kernels() == {f"{NAME}.relu": 3, f"{NAME}.softmax": 3}
    expected = x.torch()
    for _ in range(3):
        expected = torch.softmax(expected.relu(), 1)
    for _ in range(3):
        torch.testing.assert_close(run(x).torch(), expected)
    assert "no CUDA graph" not in str(run.cuda_graph)
    run.save(tmp_path / "saved")
    assert len(list((tmp_path / "saved" / "kernels").iterdir())) == 2
    torch.testing.assert_close(meta.vm.load(tmp_path / "saved")(x).torch(), expected)


def test_a_launch_follows_the_current_stream_and_is_recorded() -> None:
    x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    types = {"x": "float32", "out": "float32", "numel": 64}
    launch = TritonLaunch(kernels.relu, Device("cuda:0"), (1,), **types, BLOCK=64)
    launch(x, out)
    torch.cuda.synchronize()
    out.zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # what is launched elsewhere would not wait for it
        x.fill_(5.0)
        launch(x, out)
    stream.synchronize()
    assert (out == 5).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, out)
    out.zero_()
    x.fill_(7.0)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 7).all()


def test_memory_that_the_code_wants_is_given() -> None:
    """Descriptors that a kernel makes lie in global memory, from Hopper on."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs compute capability 9.0")
    x, out = torch.randn(64, 32, device="cuda"), torch.empty(64, 32, device="cuda")
    how: dict[str, Any] = {"x": "float32", "out": "float32", "n": 64, "BLOCK": 32}
    TritonLaunch(described, Device("cuda:0"), (8,), **how)(x, out)
    assert torch.equal(out, 2 * x)


def test_clusters_of_blocks() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs compute capability 9.0")
    x, out = torch.randn(1000, device="cuda"), torch.empty(1000, device="cuda")
    how: dict[str, Any] = {"x": "float32", "out": "float32", "numel": 1000}
    TritonLaunch(kernels.relu, Device("cuda:0"), (4,), **how, BLOCK=256, num_ctas=2)(x, out)
    assert torch.equal(out, x.relu())


def test_offsets_of_64_bits() -> None:
    if torch.cuda.mem_get_info()[0] < BYTES:
        pytest.skip(f"needs {BYTES >> 30} GiB of GPU memory")
    count = 2**31 + 77
    x = torch.randint(0, 256, (count,), dtype=torch.uint8, device="cuda")
    with only(NAME):
        found = meta.bitwise_invert(meta.array(x)).torch()
    assert torch.equal(found, ~x)
    narrow = x[: 2**31 - 2**21]
    with only(NAME):
        assert torch.equal(meta.bitwise_invert(meta.array(narrow)).torch(), ~narrow)


def test_a_launch_takes_3_microseconds_more_than_the_driver() -> None:
    """Of the host; the driver's own call takes 2 to 5 of them, by the machine."""
    x, y, out = (torch.zeros(16, device="cuda") for _ in range(3))
    types = dict.fromkeys(("x1", "x2", "out"), "float32")
    launch = TritonLaunch(
        kernels.add, Device("cuda:0"), (1,), **types, numel=16, BLOCK=64, num_warps=1
    )
    launch(x, y, out)
    prepared = launch._run.__globals__
    memory, handle, driver = prepared["pop"](), prepared["handle"], prepared["call"]

    def bare() -> None:
        driver(memory.config_at, handle, memory.addresses, None)

    def seconds(call: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            call()
        return (time.perf_counter() - start) / 500

    turns = [(seconds(bare), seconds(lambda: launch(x, y, out))) for _ in range(20)]
    own, whole = (min(times) * 1e6 for times in zip(*turns, strict=True))
    assert whole - own <= 3.0, f"{whole:.2f} us, of which the driver {own:.2f}"
