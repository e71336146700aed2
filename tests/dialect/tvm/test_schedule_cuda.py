"""Every form of function gets a CUDA schedule that compiles; with a GPU, one that is right."""

from __future__ import annotations

import shutil

import pytest
import torch
import tvm
from tvm import te, topi

from meta.base.device import Device
from meta.dialect.tvm import nvrtc, schedule_cuda
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import cuda, for_device
from tests.dialect.tvm.functions import RECORDS, empty_like, sample, tensor, unary

# TVM's sort for the CPU calls a host function; kernels for CUDA are to use topi.gpu's.
ON_CUDA = sorted(RECORDS.keys() - {"sort", "sorted_and_summed"})


def _source(inputs, outputs, in_place=False) -> str:
    target = cuda("sm_90")
    function = schedule_cuda.schedule(prim_func(inputs, outputs, in_place=in_place), target)
    with target:
        module = tvm.compile(tvm.IRModule({"main": function}), target).mod
    return "".join(part.inspect_source() for part in module.imports)


@pytest.mark.parametrize("name", ON_CUDA)
def test_source(name):
    inputs, outputs, _ = RECORDS[name]()
    source = _source(inputs, outputs)
    assert "__global__" in source or name == "empty"
    assert source == "" or nvrtc.PROLOGUE in nvrtc.slim(source)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    "record",
    [
        unary((33,), "erf", "float16"),
        unary((33,), "sigmoid", "bfloat16"),
        RECORDS["softmax"](),
        RECORDS["sum_all"](),
    ],
)
def test_slim_source_compiles(record):
    inputs, outputs, _ = record
    assert nvrtc._nvcc(shutil.which("nvcc"), nvrtc.slim(_source(inputs, outputs)), "sm_90")


def test_updates_in_place_are_not_inlined_past_the_store():
    m, p = tensor(10, name="m"), tensor(10, name="p")
    new_m = te.compute((10,), lambda i: m[i] * 0.5)
    new_p = te.compute((10,), lambda i: p[i] - m[i])
    definitions = _source([m, p], [new_m, new_p], in_place=(0, 1)).split("__global__")[1:]
    assert "copy_ptr" in definitions[-1] and "p_ptr" not in definitions[-1]


def test_hand_built_loops_are_launched():
    x = tensor(6, 9)
    assert "blockIdx.x" in _source([x], [topi.cumsum(x, 1)])


def test_broken_source_shows_the_log():
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    with pytest.raises(RuntimeError, match="error"):
        nvrtc._nvcc(compiler, 'extern "C" __global__ void f() { nonsense; }', "sm_90")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ON_CUDA)
def test_result(name):
    inputs, outputs, oracle = RECORDS[name]()
    run = kernel(prim_func(inputs, outputs, in_place=False), for_device(Device("cuda")))
    arrays = [sample(placeholder, seed).cuda() for seed, placeholder in enumerate(inputs)]
    results = [empty_like(output).cuda() for output in outputs]
    run(*arrays, *results)
    for result, expected in zip(results, oracle(*arrays), strict=True):
        torch.testing.assert_close(result, expected.contiguous(), rtol=2e-5, atol=5e-4)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["transpose", "matmul_big", "matvec", "sum_rows", "softmax"])
def test_unaligned_views(name):
    inputs, outputs, oracle = RECORDS[name]()
    run = kernel(prim_func(inputs, outputs, in_place=False), for_device(Device("cuda")))

    def shifted(array: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(array.numel() + 1, dtype=array.dtype, device="cuda")
        return buffer[1:].view(array.shape).copy_(array)

    arrays = [shifted(sample(placeholder, seed)) for seed, placeholder in enumerate(inputs)]
    results = [shifted(empty_like(output)) for output in outputs]
    run(*arrays, *results)
    for result, expected in zip(results, oracle(*arrays), strict=True):
        torch.testing.assert_close(result, expected.contiguous(), rtol=2e-5, atol=5e-4)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_runs_on_the_current_stream():
    """A kernel called under a stream waits for that stream's work, and is captured by graphs."""
    inputs, outputs, _ = RECORDS["elementwise"]()
    run = kernel(prim_func(inputs, outputs, in_place=False), for_device(Device("cuda")))
    x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    run(x, y)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(1.0)
        run(x, y)
    stream.synchronize()
    torch.testing.assert_close(y, torch.ones_like(y).exp())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, y)
    x.fill_(2.0)
    graph.replay()
    torch.testing.assert_close(y, torch.full_like(y, 2.0).exp())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nvrtc_is_used():
    assert nvrtc._library() is not None and nvrtc._include_folders()
