"""What memsets set in a CUDA graph, kernels set: the same bytes, at the same moment."""

from __future__ import annotations

import ctypes

import pytest
import torch

from meta.base.device import Device
from meta.base.errors import DeviceError
from meta.dialect.cuda import graph_fills
from meta.runtime import cuda_driver as driver
from meta.vm.graphs.capture import CudaRecorder

pytestmark = pytest.mark.cuda


def set_elements(x: torch.Tensor, begin: int, count: int, size: int, value: int) -> None:
    """Set elements of ``size`` bytes by the driver's memset."""
    name = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}[size]
    at = ctypes.c_uint64(x.data_ptr() + begin * size)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    found = getattr(driver.library(), name)(
        at, ctypes.c_uint(value), ctypes.c_size_t(count), stream
    )
    driver.check(found, name)


def memsets(graph: torch.cuda.CUDAGraph) -> int:
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    found = 0
    for node in graph_fills._nodes(raw):
        kind = ctypes.c_int()
        code = driver.library().cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        driver.check(code, "cuGraphNodeGetType")
        found += kind.value == 2
    return found


@pytest.mark.parametrize(
    ("size", "begin", "count", "left"),
    [
        (1, 3, 1, 0),
        (1, 0, 70001, 1),
        (2, 5, 300, 0),
        (4, 1, 1, 0),
        (4, 7, 16384, 0),
        (4, 7, 16385, 1),
    ],
)
def test_between_kernels(size: int, begin: int, count: int, left: int) -> None:
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    x = torch.randint(100, (1 << 17,), dtype=dtype, device="cuda")
    y, z = torch.empty_like(x), torch.empty_like(x)

    def body() -> None:
        torch.add(x, 1, out=y)
        set_elements(y, begin, count, size, 55)
        torch.mul(y, 2, out=z)

    graph = CudaRecorder(Device("cuda")).try_out(body)
    assert memsets(graph) == left
    for _ in range(3):
        x.copy_(torch.randint(100, x.shape, dtype=dtype, device="cuda"))
        graph.replay()
        wanted = x + 1
        wanted[begin : begin + count] = 55
        assert torch.equal(z, wanted * 2)


def test_on_two_branches() -> None:
    x = torch.arange(4096, device="cuda", dtype=torch.int32)
    y, z, total = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    beside = torch.cuda.Stream()

    def body() -> None:
        torch.add(x, 1, out=y)
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            torch.mul(x, 3, out=z)
            z[:2].zero_()
        y[1:3].zero_()
        torch.cuda.current_stream().wait_stream(beside)
        torch.add(y, z, out=total)

    graph = CudaRecorder(Device("cuda")).try_out(body)
    assert memsets(graph) == 0
    for _ in range(20):
        x.add_(1)
        graph.replay()
        one, other = x + 1, x * 3
        one[1:3], other[:2] = 0, 0
        assert torch.equal(total, one + other)


def test_a_graph_without_any() -> None:
    x = torch.zeros(8, device="cuda")
    graph = CudaRecorder(Device("cuda")).try_out(lambda: x.add_(1))
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 8


def test_a_failure_leaves_the_recorder_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(8, device="cuda")
    recorder = CudaRecorder(Device("cuda"))

    def refuse(graph: torch.cuda.CUDAGraph, device: int) -> int:
        raise DeviceError("the driver refuses")

    with monkeypatch.context() as patch:
        patch.setattr("meta.vm.graphs.capture.fill_by_kernels", refuse)
        with pytest.raises(DeviceError, match="the driver refuses"):
            recorder.try_out(lambda: x.add_(x + 1))
    recorder.try_out(lambda: x.add_(x + 1)).replay()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 8
