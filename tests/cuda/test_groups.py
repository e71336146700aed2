"""Products in groups and losses of large layers on a device: each dialect, CUDA graphs, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.device import Device
from meta.base.registry import OPERATORS
from meta.dialect import only, prefer
from meta.ir import TensorType
from meta.model import parameter, trace, value_and_grad
from meta.op.core import tree
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.op.linalg import CASES as PRODUCTS
from tests.op.linear_loss import CASES as LOSSES

pytestmark = pytest.mark.cuda
CUDA = Device("cuda")
DIALECTS = ("torch", "triton")
GROUPED = [c for c in PRODUCTS if c.op.startswith("grouped_matmul") and c.samples]
SAMPLES = [
    pytest.param(c, one, id=f"{c.op}({one})"[:80]) for c in GROUPED + LOSSES for one in c.samples
]
ERROR = {"float16": 4e-3, "bfloat16": 1.6e-2, "float32": 1e-5}
SCALE = 1024.0
"""Of losses before gradients are taken, which float16 would lose."""
KINDS = {
    "": ((1000, 264), (7, 264, 520)),
    "_nt": ((1000, 264), (7, 520, 264)),
    "_tn": ((1000, 264), (1000, 520)),
    "_tt": ((7, 264, 200), (1000, 264)),
}
"""By form: rows, rows, the inner extent and columns are divided."""
AT_ONCE = {("", "bfloat16"), ("_nt", "bfloat16"), ("_tn", "bfloat16")}
"""Of ATen, from compute capability 9.0 on."""
ENDS = [0, 300, 300, 301, 555, 900, 990]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_each_dialect_agrees_with_the_oracle(case: OpCase, one: Sample, dialect: str) -> None:
    pytest.importorskip("triton")
    for dtype in case.dtypes:
        if dialect in opcheck.accepting(case, one, dtype, "cuda"):
            opcheck.check_dialect(case, one, dtype, dialect, "cuda")


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    made = torch.randn(shape, generator=generator, device="cuda")
    return made.to(getattr(torch, dtype))


def operands(form: str, dtype: str) -> list[torch.Tensor]:
    made = [normal(*shape, dtype=dtype) for shape in KINDS[form]]
    return [*made, torch.tensor(ENDS, dtype=torch.int32, device="cuda")]


def near(found: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
    assert error <= ERROR[dtype], f"{float(error):.2e}"


def by_group(form: str, given: list[torch.Tensor]) -> torch.Tensor:
    oracle = next(c.oracle for c in GROUPED if c.op == f"grouped_matmul{form}")
    return oracle(given[0].double(), given[1].double(), given[2])


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_products_of_many_tiles(form: str, dtype: str, dialect: str) -> None:
    pytest.importorskip("triton")
    if dialect == "torch" and (form, dtype) not in AT_ONCE:
        pytest.skip("ATen has no kernel for all groups")
    given = operands(form, dtype)
    with only(dialect):
        found = OPERATORS[f"grouped_matmul{form}"](*map(meta.array, given))
    near(found.torch(), by_group(form, given), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("form", KINDS)
def test_all_configurations_of_triton(form: str, dtype: str) -> None:
    pytest.importorskip("triton")
    from meta.dialect.triton import triton_dialect

    base, given = OPERATORS[f"grouped_matmul{form}"], operands(form, dtype)
    types = [TensorType(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in given]
    call = base.call_values(base.schema.bind(tuple(types), {}, lambda v: v), CUDA)
    env = triton_dialect.resolve(base.name).make(call)
    expected = by_group(form, given)
    listed = env.configs.listed()
    assert len(listed) >= 4
    for config in ((), *listed):
        out = torch.full(call.out.static_shape, torch.nan, device="cuda", dtype=given[0].dtype)
        (env if config == () else env.configs.made(config)).run(*given, out)
        near(out, expected, dtype)


def test_ends_that_change_between_replays_of_a_graph() -> None:
    """The host reads none of them: a graph holds the products, whatever the groups are."""
    pytest.importorskip("triton")
    given = operands("_nt", "bfloat16")
    arrays = [meta.array(t) for t in given]

    def program(x: Any, w: Any, ends: Any) -> Any:
        y = op.grouped_matmul_nt(x, w, ends)
        others = [op.grouped_matmul_nt(y[:, 8 * i : 264 + 8 * i], w, ends) for i in range(4)]
        return y, *others  # a graph pays from 4 kernels on

    model = trace(program)
    for dialect in DIALECTS:  # ATen's kernel takes compute capability 9.0 or more
        if dialect == "torch" and torch.cuda.get_device_capability() < (9, 0):
            continue
        with prefer(dialect):
            run = meta.vm.compile(model, *arrays, device="cuda", cuda_graph=True)
        for ends in (ENDS, [1000] * 7, [0] * 7, [100, 200, 300, 400, 500, 600, 700]):
            given[2].copy_(torch.tensor(ends, dtype=torch.int32))
            arrays[2].update(given[2])
            for _ in range(3):
                y, *others = (a.torch() for a in run(*arrays))
            near(y, by_group("_nt", given), "bfloat16")
            for i, one in enumerate(others):
                part = y[:, 8 * i : 264 + 8 * i]
                near(one, by_group("_nt", [part, *given[1:]]), "bfloat16")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("form", KINDS)
def test_wrong_ends_stay_within_the_tensors(form: str, dialect: str) -> None:
    """Nobody looks at indices here; compute-sanitizer, or a fault, would tell."""
    pytest.importorskip("triton")
    if dialect == "torch" and (form, "bfloat16") not in AT_ONCE:
        pytest.skip("ATen has no kernel for all groups")
    given = operands(form, "bfloat16")
    for ends in ([-5, 2000, 3, 7, 900, 12, 2**31 - 1], [1000, 0] * 3 + [1000]):
        given[2] = torch.tensor(ends, dtype=torch.int32, device="cuda")
        with only(dialect):
            OPERATORS[f"grouped_matmul{form}"](*map(meta.array, given))
        torch.cuda.synchronize()


class Last(meta.Model):
    """The last layer of a language model with its loss."""

    def build(self, loss: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.loss, self.weight = loss, parameter(meta.array(weight))
        self.bias = None if bias is None else parameter(meta.array(bias))

    @trace
    def forward(self, x: Any, labels: Any) -> Any:
        return self.loss(x, self.weight, labels, self.bias)


def in_pieces(x: Any, weight: Any, labels: Any, bias: Any) -> Any:
    return meta.linear_cross_entropy(x, weight, labels, linear_bias=bias)


def in_memory(x: Any, weight: Any, labels: Any, bias: Any) -> Any:
    return meta.cross_entropy(meta.linear(x, weight, bias), labels)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_layer_of_a_vocabulary(dialect: str, dtype: str, bias: bool) -> None:
    """Several pieces, the last of another width; eager, with gradients."""
    pytest.importorskip("triton")
    x, weight = normal(3000, 96, dtype=dtype), normal(10_007, 96, dtype=dtype) * 0.1
    added = normal(10_007, dtype=dtype) if bias else None
    labels = torch.randint(10_007, (3000,), device="cuda")
    labels[5:40] = -100
    arrays = [meta.array(t.clone()) for t in (x, weight, added) if t is not None]
    for array in arrays:
        array.requires_grad = True
    with meta.dialect.prefer(dialect):
        y = in_pieces(arrays[0], arrays[1], meta.array(labels), arrays[2] if bias else None)
        y.backward(meta.full_like(y, SCALE))
    leaves = [t.double().requires_grad_() for t in (x, weight, added) if t is not None]
    expected = F.cross_entropy(F.linear(*leaves), labels)
    (expected * SCALE).backward()
    near(y.torch(), expected.detach(), dtype)
    for array, leaf in zip(arrays, leaves, strict=True):
        near(array.grad.torch(), leaf.grad, dtype)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_memory_of_a_step_of_gpt2(dialect: str) -> None:
    """At most a quarter of that with all scores, without what the step is given and returns."""
    pytest.importorskip("triton")
    x, weight = normal(4096, 768, dtype="bfloat16"), normal(50257, 768, dtype="bfloat16") * 0.03
    labels = torch.randint(50257, (4096,), device="cuda")
    dy = meta.array(torch.ones((), dtype=torch.bfloat16, device="cuda"))
    peaks, losses = [], []
    for loss in (in_memory, in_pieces):
        step = value_and_grad(Last(loss, weight, None))
        args = dy, meta.array(x), meta.array(labels)
        before = torch.cuda.memory_allocated()
        with meta.dialect.prefer(dialect):
            run = meta.vm.compile(step, *args, device="cuda", cuda_graph=False)
        torch.cuda.reset_peak_memory_stats()
        found = run(*args)
        torch.cuda.synchronize()
        results = sum(a.nbytes for a in tree.flatten(found)[0])
        peaks.append(torch.cuda.max_memory_allocated() - before - results)
        losses.append(found[0].torch().float())
        del found, run, step
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=2e-2)
    assert peaks[1] <= 0.25 * peaks[0], peaks
