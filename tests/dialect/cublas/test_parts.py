"""Products that are wanted in parts: one batch, the parts side by side, or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect import only
from meta.dialect.cublas.gemm import SplitProduct
from meta.dialect.cublas.problem import Matrix, Problem
from meta.passes import canonicalize, explain_fusion
from meta.testing import check
from tests.dialect.cublas.test_emulated import tensors

pytestmark = pytest.mark.usefixtures("emulated")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    with only("cublas", "torch"):
        yield


def model(product: Any, parts: Any, axis: int = -1) -> Any:
    @meta.model.trace
    def run(x: Any, w: Any, b: Any) -> Any:
        y = product(op.reshape(x, (-1, x.shape[-1])), w)
        y = op.reshape(y, (*x.shape[:-1], -1))
        y = y if b is None else op.add(y, b)
        return [op.multiply(part, 2.0) for part in op.split(y, parts, axis)]

    return run


@pytest.mark.parametrize("product", ["dense", "matmul"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("count", "width", "rows"), [(3, 8, 5), (2, 16, 1), (4, 4, 3)])
def test_parts_are_one_batch(
    product: str, biased: bool, count: int, width: int, rows: int, emulated: Any
) -> None:
    x, w, b = tensors((2, rows, 8), (count * width, 8), (count * width,))
    given = w if product == "dense" else w.t().contiguous()
    bias = b if biased else None
    arrays = [None if t is None else meta.array(t) for t in (x, given, bias)]
    compiled = meta.vm.compile(model(getattr(op, product), count), *arrays)
    name = f"cublas.{product}{'_bias' * biased}_split"
    assert compiled.kernels()[name] == 1
    emulated.clear()
    found = compiled(*arrays)
    expected = (F.linear(x.double(), w.double(), None if bias is None else b.double()) * 2).chunk(
        count, -1
    )
    for part, correct in zip(found, expected, strict=True):
        check(part, correct)
    # The parts lie in the arena, 64 bytes or a multiple apart.
    assert all(p.batch == count and p.out_step * 4 % 64 == 0 for p in emulated)
    check(model(getattr(op, product), count)(*arrays)[0], expected[0])


def test_parts_that_lie_anywhere_are_computed_one_by_one(emulated: Any) -> None:
    x, w, b = (t.half() for t in tensors((4, 8), (24, 8), (24,)))
    whole = Problem("float16", 3, 4, 8, 8, Matrix(8, False), Matrix(8, True, 64), "bias",
                    vector_step=8)  # fmt: skip
    run = SplitProduct(whole, 0)
    emulated.clear()
    memory = torch.zeros(1000, dtype=torch.float16)
    for starts, batches in (((0, 64, 128), [3]), ((0, 96, 32), [1]), ((64, 32, 0), [1])):
        outs = [memory[s : s + 32].view(4, 8) for s in starts]
        memory.zero_()
        run(x, w, b, *outs)
        expected = F.linear(x.double(), w.double(), b.double()).chunk(3, 1)
        for out, correct in zip(outs, expected, strict=True):
            torch.testing.assert_close(out.double(), correct, rtol=2e-3, atol=2e-3)
        assert sorted({p.batch for p in emulated}) in (batches, [])
        emulated.clear()  # what is the same as before is not planned again


def test_results_of_a_program_need_not_lie_side_by_side() -> None:
    @meta.model.trace
    def run(x: Any, w: Any) -> Any:
        return op.split(op.dense(x, w), 3, 1)

    x, w = tensors((4, 8), (24, 8))
    compiled = meta.vm.compile(run, meta.array(x), meta.array(w))
    assert compiled.kernels() == {"cublas.dense_split": 1}
    for _ in range(2):
        found = compiled(meta.array(x), meta.array(w))
        for part, correct in zip(found, (x.double() @ w.double().t()).chunk(3, 1), strict=True):
            check(part, correct)


@pytest.mark.parametrize(
    ("parts", "axis", "shape", "reason"),
    [
        ((8,), 1, (24, 8), "not cut into equal parts"),
        (2, 0, (24, 8), "not cut along its columns"),
        (3, 1, (9, 8), "do not begin at multiples of 16 bytes"),
    ],
)
def test_refusals_say_why(parts: Any, axis: int, shape: tuple[int, int], reason: str) -> None:
    @meta.model.trace
    def run(x: Any, w: Any) -> Any:
        return op.split(op.dense(x, w), parts, axis)

    x, w = (meta.array(t) for t in tensors((4, 8), shape))
    module = canonicalize(run.program(x, w).module)
    assert reason in explain_fusion(module, device=CPU)
    found = meta.vm.compile(run, x, w)(x, w)
    for part, correct in zip(found, run(x, w), strict=True):
        check(part, correct.torch())


class Attention(meta.model.Model):
    """Self-attention as strangers write it: one layer for query, key and value, biases or not."""

    def build(self, width: int, heads: int, bias: bool) -> None:
        self.heads = heads
        self.joined = meta.model.layers.Linear(width, 3 * width, bias)
        self.out = meta.model.layers.Linear(width, width)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        n, steps, width = x.shape
        shape = n, steps, self.heads, width // self.heads
        query, key, value = (op.reshape(p, shape) for p in op.split(self.joined(x), 3, 2))
        y = op.fused_attention(query, key, value, layout="BSHD")[0]
        return op.add(self.out(op.reshape(y, x.shape)), x)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_an_attention(bias: bool) -> None:
    meta.random.seed(0)
    step = meta.model.value_and_grad(Attention(16, 2, bias))
    x, dy = (meta.array(t) for t in tensors((2, 5, 16), (2, 5, 16)))
    compiled = meta.vm.compile(step, dy, x)
    assert compiled.kernels()[f"cublas.dense{'_bias' * bias}_split"] == 1
    found, expected = compiled(dy, x), step(dy, x)
    leaves = [meta.op.core.tree.flatten(value)[0] for value in (found, expected)]
    for one, correct in zip(*leaves, strict=True):
        check(one, correct)
