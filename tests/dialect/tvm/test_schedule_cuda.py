"""Every form of function gets a CUDA schedule that compiles; with a GPU, one that is right."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
import tvm
from tvm import s_tir, te, topi

import meta
from meta.base.device import Device
from meta.dialect import only
from meta.dialect.tvm import cuda_source, loss, schedule_cuda
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.stages import blocks_of
from meta.dialect.tvm.target import cuda, for_device
from meta.runtime import gpu_properties
from meta.runtime.nvrtc import PROLOGUE, include_folders, nvrtc_library, run_nvcc
from tests.dialect.tvm.functions import RECORDS, empty_like, sample, tensor, unary

# TVM's sort for the CPU calls a host function; kernels for CUDA are to use topi.gpu's.
ON_CUDA = sorted(RECORDS.keys() - {"sort", "sorted_and_summed"})


def _compiled(inputs, outputs, in_place=(), arch=gpu_properties.DEFAULT.arch) -> tvm.runtime.Module:
    capability = int(arch[3:-1]), int(arch[-1])
    target = cuda(replace(gpu_properties.DEFAULT, capability=capability))
    function = schedule_cuda.schedule(prim_func(inputs, outputs, in_place=in_place), target)
    function, _ = cuda_source.as_parameters(function)
    with target:
        return tvm.compile(tvm.IRModule({"main": function}), target).mod


def _source(inputs, outputs, in_place=(), arch=gpu_properties.DEFAULT.arch) -> str:
    module = _compiled(inputs, outputs, in_place, arch)
    return "".join(part.inspect_source() for part in module.imports)


@pytest.mark.parametrize("name", ON_CUDA)
def test_source(name):
    inputs, outputs, _ = RECORDS[name]()
    source = _source(inputs, outputs)
    assert "__global__" in source or name == "empty"
    assert source == "" or PROLOGUE in cuda_source.complete(source)


@pytest.mark.product
@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
@pytest.mark.parametrize("name", ["softmax", "sum_few", "layer_norm_outputs"])
def test_other_architectures(name, arch):
    """No GPU is needed; nvcc, where there is one, makes machine code of it."""
    inputs, outputs, _ = RECORDS[name]()
    source = _source(inputs, outputs, arch=arch)
    assert "__global__" in source
    if compiler := shutil.which("nvcc"):
        assert run_nvcc(compiler, cuda_source.complete(source), arch)


def _cross_entropy(rows: int, classes: int):
    label, x = tensor(rows, dtype="int64", name="label"), tensor(rows, classes)
    return [x, label], [loss.cross_entropy(x, label)]


@pytest.mark.parametrize("name", ["softmax", "sum_few", "several_readers", "layer_norm_outputs"])
def test_intermediate_arrays_come_from_the_caller(name):
    """TVM's own pool knows no streams and no graphs."""
    inputs, outputs, _ = RECORDS[name]()
    assert "AllocWorkspace" not in _compiled(inputs, outputs).inspect_source("ll")


def test_one_launch_for_each_kernel():
    """No loop around a launch, as dlight makes of a reduction to a scalar with an epilogue."""
    inputs, outputs = _cross_entropy(64, 100)
    target = cuda()
    function = schedule_cuda.schedule(prim_func(inputs, outputs), target)
    sch = s_tir.Schedule(function)
    for block in blocks_of(sch):
        outermost = sch.get(sch.get_loops(block)[0])
        assert outermost.thread_binding is not None, outermost


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_nothing_is_launched_on_an_empty_grid(shape):
    """An empty reduction has a value; an empty output no kernel: TVM launches one block for 0."""
    x = tensor(*shape, dtype="float16")
    total = topi.cast(topi.sum(topi.cast(x, "float32")), "float16")
    copy = te.compute(shape, lambda *i: x(*i), name="copy")
    for inputs, outputs in (([x], [total]), ([x], [total, copy]), _cross_entropy(0, 4)):
        target = cuda()
        function = schedule_cuda.schedule(prim_func(inputs, outputs), target)
        assert "thread_binding(0" not in function.script()
        source = _source(inputs, outputs)
        assert source.count('extern "C" __global__') >= 2


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
    assert run_nvcc(shutil.which("nvcc"), cuda_source.complete(_source(inputs, outputs)), "sm_90")


def _update():
    m, p = tensor(10, name="m"), tensor(10, name="p")
    new_m = te.compute((10,), lambda i: m[i] * 0.5)
    return [m, p], [new_m, te.compute((10,), lambda i: p[i] - m[i])]


def test_updates_in_place_are_one_kernel():
    assert _source(*_update(), in_place=(0, 1)).count("__global__") == 2  # declared and defined


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("start", [0, 1])
def test_updates_in_place_read_the_old_values(start):
    run = kernel(prim_func(*_update(), in_place=(0, 1)), for_device(Device("cuda")))
    m, p = (torch.randn(11, device="cuda")[start : start + 10] for _ in range(2))
    expected = m * 0.5, p - m
    run(m, p, m, p)
    torch.testing.assert_close((m, p), expected)


def test_hand_built_loops_are_launched():
    x = tensor(6, 9)
    assert "blockIdx.x" in _source([x], [topi.cumsum(x, 1)])


def test_broken_source_shows_the_log():
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    with pytest.raises(RuntimeError, match="error"):
        run_nvcc(compiler, 'extern "C" __global__ void f() { nonsense; }', "sm_90")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ON_CUDA)
def test_result(name):
    inputs, outputs, oracle = RECORDS[name]()
    run = kernel(prim_func(inputs, outputs), for_device(Device("cuda")))
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
    run = kernel(prim_func(inputs, outputs), for_device(Device("cuda")))

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
    run = kernel(prim_func(inputs, outputs), for_device(Device("cuda")))
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
    assert nvrtc_library() is not None and include_folders()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
@pytest.mark.parametrize("function", ["sum", "prod", "all", "any"])
def test_empty_reductions_have_the_identity(shape, function):
    for axes in [(0,), tuple(range(len(shape))), (len(shape) - 1,)]:
        x = torch.zeros(shape, device="cuda", dtype=torch.float16)
        expected = x
        for axis in sorted(axes, reverse=True):
            expected = getattr(torch, function)(expected, axis)
        with only("tvm"):
            found = getattr(meta, function)(x, axis=axes)
        assert torch.equal(found.torch(), expected.to(found.torch().dtype))
