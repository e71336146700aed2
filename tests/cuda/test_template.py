"""Source text on a device: compiled by NVRTC, launched, recorded in CUDA graphs, saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import BackendError
from meta.dialect import only
from meta.dialect.template import template
from meta.ir import parse_type
from meta.testing.compare import check
from tests.dialect.template import conftest as texts

pytestmark = pytest.mark.cuda
new_op = texts.new_op
NewOp = Callable[..., Any]
BOUNDS = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> meta.ndarray:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=generator, dtype=torch.float64)
    return meta.array(found, device="cuda").astype(dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(3, 129), (), (0, 4), (1 << 12, 1 << 9)])
def test_results(shape: tuple[int, ...], dtype: str, new_op: NewOp) -> None:
    x, y, bound = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype, seed=1), BOUNDS[dtype]
    wide, other = x.torch().double(), y.torch().double()
    check(new_op(texts.add_one, texts.ADD_ONE)(x).torch(), wide + 1, bound, bound)
    made = new_op(texts.axpy, texts.AXPY)
    check(made(x, y, -0.5).torch(), other - wide / 2, bound, bound)
    made = new_op(texts.clipped, texts.CLIPPED)
    check(made(x, -0.5, True, y).torch(), (wide + other).clamp_min(-0.5), bound, bound)
    made = new_op(texts.sum_of_all, texts.SUM_OF_ALL)
    check(made([x, y, x]).torch(), 2 * wide + other, bound, bound)


def test_several_results_and_written_arguments(new_op: NewOp) -> None:
    x = drawn(5, 70)
    wide = x.torch().double()
    sin, cos = new_op(texts.sin_and_cos, texts.SIN_AND_COS)(x)
    check(sin.torch(), wide.sin(), 1e-6, 1e-6)
    check(cos.torch(), wide.cos(), 1e-6, 1e-6)
    before, after = new_op(texts.scale_, texts.SCALE)(x, 3.0)
    assert after is x
    check(before.torch(), wide, 0, 0)
    check(after.torch(), 3 * wide, 1e-6, 1e-6)


def test_arguments_that_are_not_compact_and_not_aligned(new_op: NewOp) -> None:
    made, x = new_op(texts.add_one, texts.ADD_ONE), drawn(33, 65)
    for part in (x.T, x[1:, 3:], x[::2]):
        check(made(part).torch(), part.torch().double() + 1, 1e-6, 1e-6)


def test_more_elements_than_an_index_of_32_bits(new_op: NewOp) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 6 << 30:
        pytest.skip("needs 6 GB")
    text = texts.ADD_ONE.replace("{{ out.down }}({{ x.up }}(x[i]) + 1)", "x[i] + 1")
    made = new_op(texts.add_one, text)
    x = meta.zeros((1 << 31) + 5, dtype="int8", device="cuda")
    assert bool((made(x).torch() == 1).all())


@pytest.mark.parametrize("graph", [False, True])
def test_programs(graph: bool, new_op: NewOp, tmp_path: Path) -> None:
    made = new_op(texts.axpy, texts.AXPY)

    def program(x: Any, y: Any) -> Any:
        for scale in (2.0, 0.5, -1.0, 0.25):
            x = made(meta.tanh(x), y, scale)
        return x

    types = [parse_type("float32[40, 30]")] * 2
    run = meta.vm.compile(meta.model.trace(program), *types, device="cuda", cuda_graph=graph)
    assert run.kernels()["template.axpy"] == 4
    run.save(tmp_path / "saved")
    for seed in range(3):
        x, y = drawn(40, 30, seed=seed), drawn(40, 30, seed=seed + 9)
        wide, other = x.torch().double(), y.torch().double()
        expected = wide
        for scale in (2.0, 0.5, -1.0, 0.25):
            expected = scale * expected.tanh() + other
        check(run(x, y).torch(), expected, 1e-5, 1e-5)
        check(meta.vm.load(tmp_path / "saved")(x, y).torch(), expected, 1e-5, 1e-5)


def test_extents_that_are_known_when_it_runs(new_op: NewOp) -> None:
    made = new_op(texts.add_one, texts.ADD_ONE)
    program = meta.model.trace(lambda x: made(x))
    run = meta.vm.compile(program, parse_type("float16[n, 5]"), dims={"n": (1, 50)}, device="cuda")
    for n in (1, 7, 50):
        x = drawn(n, 5, dtype="float16")
        check(run(x).torch(), x.torch().double() + 1, 2e-3, 2e-3)


def test_a_kernel_with_much_shared_memory(new_op: NewOp) -> None:
    """More than a thread block has without asking, of a size that follows from extents."""
    text = """
__global__ void add_one({{ out.type }}* out, const {{ x.type }}* x, int n) {
  extern __shared__ float whole[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) whole[n - 1 - i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = whole[i] + 1;
}"""
    launch = "int n = {{ x.size }};\nadd_one<<<1, 256, n * sizeof(float)>>>(out, x, n);"
    made = new_op(texts.add_one, text, launch=launch)
    for n in (100, 20_000):
        x = drawn(n)
        check(made(x).torch(), x.torch().flip(0).double() + 1, 1e-6, 1e-6)


def test_configurations_are_measured(new_op: NewOp) -> None:
    launch = "add_one<<<ceil_div({{ x.size }}, {{ n }}), {{ n }}>>>({{ arguments }}, {{ x.size }});"
    configs = [{"n": 32}, {"n": 256}, {"n": 1024}]
    made = new_op(texts.add_one, texts.ADD_ONE, launch=launch, configs=configs)
    x = drawn(1 << 20)
    for how in ("graph", "eager"):
        costs = meta.measure(made, x, how=how, iters=5)
        assert [c.name for c in costs] == ["template", "template@n=256", "template@n=1024"]
        assert all(c.forward is not None and c.forward.median > 0 for c in costs)
    with only("template"):
        found = template.pieces["cuda.add_one.gen_profiler"](x)
    assert found[0].config == ()


def test_source_that_does_not_compile(new_op: NewOp) -> None:
    made = new_op(texts.add_one, texts.ADD_ONE.replace("+ 1", "+ nothing"))
    x = drawn(3)
    with pytest.raises(BackendError, match="refused generated CUDA source"):
        made(x)
