"""The cublas dialect with an emulated library: what it asks of cuBLASLt is the right product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.base.errors import DispatchError
from meta.dialect import only
from meta.dialect.core import IN_PLACE, Config, Unsupported
from meta.dialect.core.openv import config_text
from meta.dialect.cublas import cublas
from meta.dialect.cublas import product as cublas_product
from meta.dialect.cublas.problem import ALIGNMENT, Problem
from meta.ir import parse
from meta.model.init import parameter
from meta.op.linalg import GROUPED
from meta.passes import canonicalize, explain_fusion, fuse_dialect
from meta.testing import check, opcheck
from meta.testing.case import OpCase, Sample
from meta.vm.compiler.pipeline import PassContext
from tests.dialect.cublas import addresses
from tests.dialect.cublas.emulation import ALGORITHMS
from tests.op.linalg import CASES

pytestmark = pytest.mark.usefixtures("emulated")
ELSEWHERE = {"scaled_matmul", "einsum", *(product.name for product in GROUPED)}
"""Operators of the family that the library does not have, or other tests run."""
SAMPLES = [
    pytest.param(c, one, id=f"{c.op}({one})"[:80])
    for c in CASES
    for one in c.samples
    if one.has_floats and c.op not in ELSEWHERE
]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_products_agree_with_the_oracle(case: OpCase, one: Sample) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        opcheck.check_dialect(case, one, dtype, "cublas")


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


STRIDED = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "part of the columns": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "transposed part": lambda x: torch.cat([x.t(), x.t()], 1)[:, : x.shape[0]].t(),
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "one row for all": lambda x: x[:1].expand(x.shape),
    "at an odd place": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("product", ["matmul", "matmul_nt", "matmul_tn", "matmul_tt"])
def test_factors_may_lie_in_memory_in_any_way(name: str, product: str, emulated: Any) -> None:
    x, w = tensors((6, 6), (6, 6))
    x, w = STRIDED[name](x), STRIDED[name](w)
    with only("cublas"):
        y = getattr(op, product)(meta.from_dlpack(x), meta.from_dlpack(w))
    first, second = (t == "t" for t in (product + "_nn")[7:9])
    expected = (x.t() if first else x).double() @ (w.t() if second else w).double()
    check(y, expected)


def test_what_can_be_read_is_not_copied(emulated: Any) -> None:
    x, w = tensors((4, 6), (6, 8))
    with only("cublas"):
        op.matmul(meta.from_dlpack(x.t().contiguous().t()), meta.array(w))
    last = emulated[-1]
    assert last.x1.transposed and last.x1.lead == 4 and not last.x2.transposed


def loss_of(model: Any, *inputs: Any) -> Any:
    """Return the results of a compiled call, and how often each kernel runs in it."""
    compiled = meta.vm.compile(model, *inputs)
    return compiled(*inputs), compiled.kernels()


def layer(activation: Any, product: Any = op.dense, residual: bool = False) -> Any:
    @meta.model.trace
    def model(x: Any, w: Any, b: Any) -> Any:
        rows = x if x.ndim == 2 else op.reshape(x, (-1, x.shape[-1]))
        y = product(rows, w)
        if x.ndim != 2:
            y = op.reshape(y, (*x.shape[:-1], -1))
        y = activation(y if b is None else op.add(y, b))
        return op.add(y, x) if residual else y

    return model


GELU = "tanh"
LAYERS = {
    "bias": (lambda y: y, {}),
    "bias_relu": (op.relu, {}),
    "bias_gelu": (lambda y: op.gelu(y, GELU), {}),
    "bias_add": (lambda y: y, {"residual": True}),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("product", ["dense", "matmul"])
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8)])
def test_layers_are_one_kernel(name: str, product: str, shape: tuple[int, ...]) -> None:
    activation, more = LAYERS[name]
    x, w, b = (meta.array(t) for t in tensors(shape, (8, 8), (8,)))
    model = layer(activation, getattr(op, product), **more)
    expected = model(x, w, b)
    found, kernels = loss_of(model, x, w, b)
    assert kernels == {f"cublas.{product}_{name}": 1}
    check(found, expected)


@pytest.mark.parametrize("product", ["dense", "matmul"])
def test_a_product_is_written_over_what_it_is_added_to(product: str) -> None:
    @meta.model.trace
    def model(x: Any, w: Any, b: Any) -> Any:
        y = getattr(op, product)(x, w)
        y = op.bias_add(getattr(op, product)(op.relu(y), w), b) + y
        return getattr(op, product)(y, w)

    x, w, b = (meta.array(t / 8) for t in tensors((64, 64), (64, 64), (64,)))
    expected = model(x, w, b)
    for least, count in ((0.0, 1), (16.0, 0)):
        with PassContext(config={"inplace_update": {"least_mib": least}}):
            run = meta.vm.compile(model, x, w, b)
        over = [
            f
            for f in run.module.functions.values()
            if IN_PLACE in f.attrs and "c" in dict(f.attrs["arguments"])
        ]
        assert len(over) == count
        check(run(x, w, b), expected)


class Mlp(meta.model.Model):
    """Two layers with what is between them, in one of two orders of weights."""

    def build(self, product: Any) -> None:
        self.product = product
        w1, b1, w2, b2 = tensors((16, 8) if product is op.dense else (8, 16), (16,), (8, 16), (8,))
        w2 = w2 if product is op.dense else w2.t().contiguous()
        self.w1, self.b1, self.w2, self.b2 = (parameter(meta.array(t)) for t in (w1, b1, w2, b2))

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        y = op.reshape(self.product(op.reshape(x, (-1, 8)), self.w1), (*x.shape[:-1], 16))
        y = op.gelu(op.add(y, self.b1), "tanh")
        y = op.reshape(self.product(op.reshape(y, (-1, 16)), self.w2), x.shape)
        return op.add(y, self.b2)


@pytest.mark.parametrize("product", ["dense", "matmul"])
def test_a_gradient_step_keeps_what_it_needs_and_sums_along(product: str) -> None:
    x, dy = (meta.array(t) for t in tensors((2, 3, 8), (2, 3, 8)))
    step = meta.model.value_and_grad(Mlp(getattr(op, product)))
    expected = step(dy, x)
    found, kernels = loss_of(step, dy, x)
    assert kernels[f"cublas.{product}_bias_gelu_kept"] == 1
    assert kernels[f"cublas.{product}_bias"] == 1
    assert sum(kernels[name] for name in kernels if f"{product}_dw_db" in name) == 2
    check(flat(found), flat(expected))


def test_the_gradient_of_gelu_is_part_of_a_large_product() -> None:
    @meta.model.trace
    def model(h: Any, dy: Any, w: Any) -> Any:
        return op.gelu_dx(h, None, op.reshape(op.matmul(dy, w), h.shape), "tanh")

    h, dy, w = (meta.array(t.half()) for t in tensors((2, 1024, 1024), (2048, 8), (8, 1024)))
    found, kernels = loss_of(model, h, dy, w)
    assert kernels == {"cublas.matmul_gelu_dx": 1}
    check(found, model(h, dy, w), 2e-3, 2e-3)
    small = [meta.array(t.half()) for t in tensors((4, 8), (4, 8), (8, 8))]
    assert "cublas.matmul_gelu_dx" not in loss_of(model, *small)[1]


def test_a_gradient_of_weights_in_float32_is_not_rounded_in_between() -> None:
    x, dy = (t.half() for t in tensors((64, 16), (64, 24)))
    wide = meta.model.trace(lambda x, dy: op.astype(op.matmul_tn(x, dy), "float32"))
    found, kernels = loss_of(wide, meta.array(x), meta.array(dy))
    assert kernels == {"cublas.matmul_tn_wide": 1} and found.dtype == "float32"
    check(found, meta.array((x.double().t() @ dy.double()).float()), 1e-5, 1e-4)
    narrow = meta.model.trace(lambda x, dy: op.astype(op.matmul_tn(x, dy), "bfloat16"))
    assert "cublas.matmul_tn_wide" not in loss_of(narrow, meta.array(x), meta.array(dy))[1]


def test_programs_name_algorithms(emulated: Any) -> None:
    """Of a product alone, and of one with what follows it, whose function says so."""
    x, w, b = (meta.array(t) for t in tensors((5, 8), (8, 8), (8,)))
    name = "cublas.dense@algorithm=xb,version=1"
    module = parse(f"""
func @main(%x: float32[5, 8], %w: float32[8, 8]) -> float32[5, 8] {{
  %y: float32[5, 8] = {name}(%x, %w)
  return %y
}}""")
    run = meta.vm.compile(module)
    assert run.kernels() == {name: 1} and name in str(module)
    check(run(x, w), op.dense(x, w))
    with only("cublas"):
        assert meta.explain(op.dense, x, w).records()[0]["configs"] == 2
    model = layer(op.relu)
    fused = fuse_dialect(canonicalize(model.program(x, w, b).module), device=CPU)
    [function] = [f for f in fused.functions.values() if "kernel" in f.attrs]
    for config in ALGORITHMS:
        stated = replace(function, attrs={**function.attrs, "config": config_text(config)})
        made, out = cublas.fused_kernel(stated, CPU), torch.empty(5, 8)
        made.run(x.torch(), w.torch(), b.torch(), out)
        assert made.config == config and made.workspace_bytes == 64
        check(out, model(x, w, b))
    wrong = replace(function, attrs={**function.attrs, "config": "algorithm=xc,version=1"})
    with pytest.raises(DispatchError, match="no algorithm"):
        cublas.fused_kernel(wrong, CPU)


def test_refusals_say_why() -> None:
    model = layer(lambda y: op.gelu(y, "tanh"))
    arrays = [meta.array(t.double()) for t in tensors((4, 3), (5, 3), (5,))]
    module = canonicalize(model.program(*arrays).module)
    assert "gelu of float64 has 11 digits" in explain_fusion(module, device=CPU)
    integers = [meta.array(torch.ones(2, 2, dtype=torch.int32))] * 2
    assert "cuBLASLt multiplies bfloat16, float16, float32, float64, not int32" in str(
        meta.explain(op.matmul, *integers)
    )


def flat(value: Any) -> list[Any]:
    """Return the arrays of nested results."""
    if isinstance(value, meta.ndarray):
        return [value]
    inner = value.values() if isinstance(value, dict) else value or ()
    return [array for one in inner for array in flat(one)]


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("product", ["dense", "matmul"])
def test_fused_kernels_take_tensors_at_any_address(
    product: str, refuses: bool, emulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the library has no algorithm for anything but multiples of 16 bytes."""
    original = cublas_product.plan

    def plan(problem: Problem, device: int, config: Config = ()) -> Any:
        if problem.alignment < ALIGNMENT and refuses:
            raise Unsupported("no algorithm")
        return original(problem, device, config)

    monkeypatch.setattr(cublas_product, "plan", plan)
    ran = set()
    for name, found, expected in addresses.at_any_address(
        product, addresses.SIZES[1], "float16", CPU
    ):
        ran.add(name)
        for one, right in zip(found, expected, strict=True):
            check(one, right, 2e-2, 1e-2)
    assert len(ran) == 8
    assert any(p.alignment < ALIGNMENT for p in emulated) != refuses
