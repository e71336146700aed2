"""The cublas dialect on a device: dtypes, layouts, epilogues, streams, graphs, precision."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base import config
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect import only
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.core.openv import config_of, config_text
from meta.ir.types import TensorType
from meta.model.init import parameter
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.dialect.cublas import addresses
from tests.op.linalg import CASES

pytestmark = pytest.mark.cuda
DTYPES = ("float16", "bfloat16", "float32", "float64")
# Of the largest element of the result: a rounding of it, and of sums of up to some thousand terms.
ERROR = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-13}
SAMPLES = [
    pytest.param(c, one, id=f"{c.op}({one})"[:80])
    for c in CASES
    for one in c.samples
    if one.has_floats
    and c.op not in ("scaled_matmul", "einsum")
    and not c.op.startswith("grouped_matmul")
]
CUDA = Device("cuda")


def cublas_kernel(name: str) -> Any:
    """Return the maker of a fused kernel of the dialect."""
    from meta.dialect.cublas import cublas

    cublas.load()
    return cublas.patterns[name]


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    made = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)
    return made.to(TO_TORCH[dtype])


def near(found: Any, expected: torch.Tensor, dtype: str) -> None:
    tensor = found.torch() if isinstance(found, meta.ndarray) else found
    assert tensor.shape == expected.shape
    error = (tensor.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    assert error <= ERROR[dtype], f"{dtype}: {float(error):.2e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_products_agree_with_the_oracle(case: OpCase, one: Sample, dtype: str) -> None:
    opcheck.check_dialect(case, one, dtype, "cublas", "cuda")


SIZES = [(4096, 768, 64), (128, 768, 768), (129, 65, 33), (1, 3072, 768), (768, 4096, 1)]
FORMS = {"matmul": (0, 0), "matmul_nt": (0, 1), "matmul_tn": (1, 0), "matmul_tt": (1, 1),
         "dense": (0, 1)}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMS)
def test_products_of_all_sizes(name: str, dtype: str) -> None:
    t1, t2 = FORMS[name]
    for m, k, n in SIZES:
        x = normal(*((k, m) if t1 else (m, k)), dtype=dtype)
        w = normal(*((n, k) if t2 else (k, n)), dtype=dtype)
        with only("cublas"):
            y = getattr(op, name)(meta.array(x), meta.array(w))
        near(y, (x.t() if t1 else x).double() @ (w.t() if t2 else w).double(), dtype)


VIEWS = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "rows apart": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "transposed, apart": lambda x: torch.cat([x, x], -2).mT.contiguous().mT[..., : x.shape[-2], :],
    "columns apart": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one row for all": lambda x: x[..., :1, :].expand(x.shape),
    "at an odd place": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "at an odd place, apart": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_factors_may_lie_in_memory_in_any_way(view: str, dtype: str, batch: Any) -> None:
    for extent in (64, 13):
        x, w = (VIEWS[view](normal(*batch, extent, extent, dtype=dtype, seed=s)) for s in (0, 1))
        product = op.batch_matmul if batch else op.matmul
        with only("cublas"):
            y = product(meta.from_dlpack(x), meta.from_dlpack(w))
        near(y, x.double() @ w.double(), dtype)


def test_batches_of_one_matrix() -> None:
    x, w = normal(1, 128, 64, dtype="float16"), normal(384, 64, 128, dtype="float16")
    for first, second in ((x, w), (w.mT.contiguous(), x.mT.contiguous())):
        with only("cublas"):
            y = op.batch_matmul(meta.array(first), meta.array(second))
        near(y, first.double() @ second.double(), "float16")


ACTIVATIONS = {
    "": lambda y: y,
    "_relu": torch.relu,
    "_gelu": lambda y: F.gelu(y, approximate="tanh"),
}


def run(name: str, result: Any, **captures: Any) -> Any:
    return addresses.run(name, result, CUDA, **captures)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("product", ["dense", "matmul"])
@pytest.mark.parametrize("sizes", [(128, 768, 256), (100, 36, 52), (7, 5, 8), (33, 16, 40)])
def test_epilogues(product: str, dtype: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    x, b, c = normal(m, k, dtype=dtype), normal(n, dtype=dtype), normal(m, n, dtype=dtype)
    w = normal(*((n, k) if product == "dense" else (k, n)), dtype=dtype)
    y = x.double() @ (w.t() if product == "dense" else w).double()
    empty = torch.empty_like
    for name, activation in ACTIVATIONS.items():
        if dtype == "float64" and "gelu" in name:
            with pytest.raises(Unsupported, match="11 digits"):
                run(f"{product}{name}", empty(c), x=x, w=w)
            continue
        found = run(f"{product}_bias{name}", empty(c), x=x, w=w, b=b, axis=1)
        near(found, activation(y + b.double()), dtype)
        if name:
            near(run(f"{product}{name}", empty(c), x=x, w=w), activation(y), dtype)
    found = run(f"{product}_add", empty(c), x=x, w=w, c=c)
    near(found, y + c.double(), dtype)
    found = run(f"{product}_bias_add", empty(c), x=x, w=w, b=b, axis=-1, c=c)
    near(found, y + b.double() + c.double(), dtype)
    if n % 8 == 0 and dtype != "float64":
        pair = run(f"{product}_bias_gelu_kept", (empty(c), empty(c)), x=x, w=w, b=b, axis=1)
        near(pair[0], ACTIVATIONS["_gelu"](y + b.double()), dtype)
        near(pair[1], y + b.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(256, 768, 128), (64, 8, 16), (512, 64, 192)])
def test_the_gradient_of_weights_and_bias(dtype: str, sizes: tuple[int, int, int]) -> None:
    rows, inner, outer = sizes
    x, dy = normal(rows, inner, dtype=dtype), normal(2, rows // 2, outer, dtype=dtype)
    flat = dy.reshape(rows, outer).double()
    db = torch.empty((1, 1, outer), dtype=dy.dtype, device="cuda")
    for name, shape in (("dense_dw_db", (outer, inner)), ("matmul_dw_db", (inner, outer))):
        dw = torch.empty(shape, dtype=dy.dtype, device="cuda")
        run(name, (dw, db), dy=dy, x=x, axis=(0, 1), keepdims=True)
        expected = flat.t() @ x.double()
        near(dw, expected if name == "dense_dw_db" else expected.t(), dtype)
        near(db.flatten(), flat.sum(0), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [(256, 768, 128), (33, 7, 5)])
def test_the_gradient_of_weights_in_float32(dtype: str, sizes: tuple[int, int, int]) -> None:
    rows, inner, outer = sizes
    x, dy = normal(rows, inner, dtype=dtype), normal(rows, outer, dtype=dtype)
    out = torch.empty(inner, outer, device="cuda")
    found = run("matmul_tn_wide", out, x=x, dy=dy, dtype="float32")
    near(found, x.double().t() @ dy.double(), "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_gradient_of_gelu_is_part_of_a_product(dtype: str) -> None:
    h, dy = normal(2, 1024, 1024, dtype=dtype), normal(2048, 256, dtype=dtype)
    w = normal(256, 1024, dtype=dtype)
    before = h.double().requires_grad_()
    after = F.gelu(before, approximate="tanh")
    [expected] = torch.autograd.grad(after, before, (dy.double() @ w.double()).view(h.shape))
    near(run("matmul_gelu_dx", torch.empty_like(h), h=h, dy=dy, w=w), expected, dtype)


def test_a_fused_kernel_takes_tensors_at_odd_places() -> None:
    x, w, b = normal(32, 16, dtype="float16"), normal(16, 32, dtype="float16"), normal(33)
    b = b.half()[1:]
    y = torch.empty(32, 32, dtype=torch.float16, device="cuda")
    run("matmul_bias_relu", y, x=x, w=w, b=b, axis=1)
    near(y, torch.relu(x.double() @ w.double() + b.double()), "float16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", addresses.SIZES)
@pytest.mark.parametrize("product", ["dense", "matmul"])
def test_fused_kernels_take_tensors_at_any_address(
    product: str, sizes: tuple[int, int, int], dtype: str
) -> None:
    for _, found, expected in addresses.at_any_address(product, sizes, dtype, CUDA):
        for one, right in zip(found, expected, strict=True):
            near(one, right, dtype)


def test_float32_is_float32_unless_allowed_otherwise() -> None:
    x, w = normal(256, 512), normal(512, 256)
    expected = x.double() @ w.double()
    a, b = meta.array(x), meta.array(w)
    with only("cublas"):
        near(op.matmul(a, b), expected, "float32")
        with config.override(META_TF32=True):
            rounded = op.matmul(a, b).torch()
        near(op.matmul(a, b), expected, "float32")
    error = (rounded.double() - expected).abs().max() / expected.abs().max()
    assert 1e-5 < error < 1e-2


def each_configured(env: OpEnv, several: bool = True) -> Iterator[OpEnv]:
    """Yield a kernel with each of its algorithms, as another process would make it. ``several``:
    whether there are some besides the first.
    """
    assert env.configs is not None
    listed = env.configs.listed()
    assert listed or not several, "the heuristic has one algorithm only"
    for one in listed:
        yield env.configured(config_of(config_text(one)))


def kernel(operator: Any, *args: Any) -> OpEnv:
    """Return the dialect's kernel of a call."""
    with only("cublas"):
        [env] = [c.env for c in meta.explain(operator, *args) if c.env is not None]
    return env


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_algorithm_is_right(dtype: str) -> None:
    for m, k, n in ((256, 512, 256), (1, 3072, 768), (64, 4096, 64)):
        x, w, b = (normal(*s, dtype=dtype) for s in ((m, k), (n, k), (n,)))
        kinds = {name: TensorType(tuple(t.shape), dtype) for name, t in (("x", x), ("w", w))}
        y = x.double() @ w.double().T
        alone = kernel(op.dense, meta.array(x), meta.array(w))
        fused = cublas_kernel("dense_bias_relu").prepare(
            {**kinds, "b": TensorType((n,), dtype), "axis": 1}, TensorType((m, n), dtype), CUDA
        )
        for env, given, right in ((alone, (x, w), y), (fused, (x, w, b), (y + b.double()).relu())):
            for made in each_configured(env):
                out = torch.full((m, n), torch.nan, dtype=x.dtype, device="cuda")
                made.run(*given, out)
                near(out, right, dtype)


def test_an_algorithm_of_another_product_is_refused_or_right() -> None:
    x, w, small = normal(256, 512), normal(256, 512), normal(8, 512)
    env, other = (kernel(op.dense, meta.array(t), meta.array(w)) for t in (x, small))
    assert env.configs is not None
    for one in env.configs.listed():
        try:
            made = other.configured(one)
        except Unsupported:
            continue
        out = torch.full((8, 256), torch.nan, device="cuda")
        made.run(small, w, out)
        near(out, small.double() @ w.double().T, "float32")


SCALED = [
    pytest.param(c, one, id=str(one)[:80])
    for c in CASES
    if c.op == "scaled_matmul"
    for one in c.samples
]


@pytest.mark.parametrize(("case", "one"), SCALED)
def test_products_of_float8_agree_with_the_oracle(case: OpCase, one: Sample) -> None:
    # The matrix unit itself keeps fewer bits of a sum than float32 has.
    rough = replace(case, rtol={"float32": 1e-2}, atol={"float32": 1e-2})
    if "cublas" in opcheck.accepting(case, one, "float32", "cuda"):
        opcheck.check_dialect(rough, one, "float32", "cublas", "cuda")


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    "kinds", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")]
)
def test_products_of_float8_by_cublaslt(kinds: tuple[str, str], rows: bool) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("float8 with scales of rows takes compute capability 9.0")
    m, n, k = 129, 512, 1024
    x, w = normal(m, k).to(TO_TORCH[kinds[0]]), normal(n, k).to(TO_TORCH[kinds[1]])
    s1, s2 = (normal(e if rows else 1).abs().reshape((e,) if rows else ()) for e in (m, n))
    expected = (x.double() * s1.reshape(-1, 1)) @ (w.double() * s2.reshape(-1, 1)).T
    for dtype in ("float16", "bfloat16", "float32"):
        given = [meta.array(t) for t in (x, w, s1, s2)]
        # The matrix unit itself keeps fewer bits of a sum than float32 has.
        error = "float16" if dtype == "float32" else dtype
        with only("cublas"):
            near(op.scaled_matmul(*given, dtype), expected, error)
        # With scales of rows, cuBLASLt 13 has one algorithm on an H100.
        for made in each_configured(kernel(op.scaled_matmul, *given, dtype), several=not rows):
            out = torch.empty(m, n, dtype=TO_TORCH[dtype], device="cuda")
            made.run(x, w, s1, s2, out)
            near(out, expected, error)


def test_what_cublaslt_has_no_kernel_for_is_refused() -> None:
    kinds = {"x": TensorType((8, 8), "int32"), "w": TensorType((8, 8), "int32")}
    with pytest.raises(Unsupported, match="not int32"):
        cublas_kernel("dense_relu").prepare(kinds, TensorType((8, 8), "int32"), CUDA)
    assert "cuBLASLt multiplies" in str(meta.explain(op.matmul, *[
        meta.array(torch.ones(2, 2, dtype=torch.int32, device="cuda"))] * 2))  # fmt: skip


def test_streams_and_threads_do_not_share_scratch_memory() -> None:
    shape = (64, 4096, 64)  # summed in parts, which lie in scratch memory
    cases = [(normal(shape[0], shape[1], seed=s), normal(shape[1], shape[2], seed=s + 1))
             for s in range(0, 16, 2)]  # fmt: skip
    expected = [x.double() @ w.double() for x, w in cases]
    arrays = [tuple(map(meta.array, case)) for case in cases]
    found: list[list[torch.Tensor]] = [[] for _ in cases]
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()), only("cublas"):
            for _ in range(50):
                found[number].append(op.matmul(*arrays[number]).torch())
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, right in zip(found, expected, strict=True):
        assert len(results) == 50
        for one in results:
            near(one, right, "float32")


def flat(value: Any) -> list[torch.Tensor]:
    """Return the tensors of nested results."""
    if isinstance(value, meta.ndarray):
        return [value.torch()]
    inner = value.values() if isinstance(value, dict) else value or ()
    return [tensor for one in inner for tensor in flat(one)]


class Mlp(meta.Model):
    """Two layers; weights are stored as layers have them."""

    def build(self, dtype: str) -> None:
        shapes = (64, 32), (64,), (32, 64), (32,)
        self.w1, self.b1, self.w2, self.b2 = (
            parameter(meta.array(normal(*s, dtype=dtype, seed=i) * 0.3))
            for i, s in enumerate(shapes)
        )

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        y = op.reshape(op.dense(op.reshape(x, (-1, 32)), self.w1), (*x.shape[:-1], 64))
        y = op.gelu(op.add(y, self.b1), "tanh")
        y = op.reshape(op.dense(op.reshape(y, (-1, 64)), self.w2), x.shape)
        return op.add(op.add(y, self.b2), x)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_training_step_is_fused_right_and_replayed_by_a_graph(dtype: str) -> None:
    step = meta.model.value_and_grad(Mlp(dtype))
    x, dy = (meta.array(normal(4, 16, 32, dtype=dtype, seed=s)) for s in (5, 6))
    with meta.dialect.exclude("cublas"):
        expected = meta.vm.compile(step, dy, x)(dy, x)
    compiled = meta.vm.compile(step, dy, x)
    kernels = compiled.kernels()
    assert kernels["cublas.dense_bias_gelu_kept"] == 1 and kernels["cublas.dense_bias_add"] == 1
    assert sum(count for name, count in kernels.items() if "dw_db" in name) == 2

    for found, right in zip(flat(compiled(dy, x)), flat(expected), strict=True):
        error = (found.double() - right.double()).abs().max() / right.double().abs().max()
        assert error < (6e-3 if dtype == "float16" else 1e-5)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        compiled(dy, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(dy, x)
    results = [t.clone() for t in flat(compiled(dy, x))]
    graph.replay()
    torch.cuda.synchronize()
    for found, right in zip(flat(captured), results, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=0)
