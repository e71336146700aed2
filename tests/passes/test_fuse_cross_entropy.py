"""A loss of a layer's scores becomes one call that has no array of them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.dialect.core.ir_calls import called_op
from meta.ir import Call, verify
from meta.model import parameter, trace, value_and_grad
from meta.passes import dead_code, fuse_cross_entropy, infer_type
from meta.testing import check

N, CLASSES, FEATURES = 6, 11, 4
Loss = Callable[[Any, Any, Any, Any], Any]


def plain(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.dense(x, w), t)


def biased(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.linear(x, w, b), t)


def bias_first(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.bias_add(op.matmul_nt(x, w), b), t)


def of_sentences(x: Any, w: Any, b: Any, t: Any) -> Any:
    scores = op.linear(op.reshape(x, (2, 3, FEATURES)), w, b)
    return op.cross_entropy(op.reshape(scores, (-1, CLASSES)), t)


def ignoring(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.dense(x, w), t, ignore_index=3)


def of_bytes(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.dense(x, w), op.astype(t, "uint8"))


def widened(x: Any, w: Any, b: Any, t: Any) -> Any:
    x, w = op.astype(x, "bfloat16"), op.astype(w, "bfloat16")
    return op.cross_entropy(op.astype(op.dense(x, w), "float32"), t)


def nobody(x: Any, w: Any, b: Any, t: Any) -> Any:
    """NaN, of nothing."""
    return op.cross_entropy(op.dense(x, w), t * 0 - 100)


FUSED = [plain, biased, bias_first, of_sentences, ignoring, of_bytes, widened, nobody]


def read_twice(x: Any, w: Any, b: Any, t: Any) -> Any:
    scores = op.dense(x, w)
    return op.cross_entropy(scores, t) + op.sum(scores)


def scaled(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.dense(x, w) * 2.0, t)


def by_row(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.dense(x, w) + op.reshape(op.sum(x, 1), (N, 1)), t)


def two_biases(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.cross_entropy(op.dense(x, w) + b + b, t)


def not_reduced(x: Any, w: Any, b: Any, t: Any) -> Any:
    return op.sum(op.cross_entropy(op.dense(x, w), t, reduction="none"))


LEFT = [read_twice, scaled, by_row, two_biases, not_reduced]


def arrays() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    floats = [torch.randn(s, generator=generator) for s in ((N, FEATURES), (CLASSES, FEATURES))]
    labels = torch.tensor([3, 10, 0, 3, 7, 1])
    return [meta.array(t) for t in (*floats, torch.randn(CLASSES, generator=generator), labels)]


def operators(module: Any) -> list[Any]:
    return [called_op(b.value) for b in module.main.body.bindings if isinstance(b.value, Call)]


@pytest.mark.parametrize("loss", [*FUSED, *LEFT], ids=lambda f: f.__name__)
def test_what_becomes_one_call(loss: Loss) -> None:
    given = infer_type(trace(loss).program(*arrays()).module)
    made = dead_code(infer_type(fuse_cross_entropy(given, least_bytes=0)))
    verify(made, typed=True)
    found = op.linear_cross_entropies in operators(made)
    assert found == (loss in FUSED)
    assert not found or not {op.dense, op.matmul_nt, op.cross_entropy} & set(operators(made))
    assert fuse_cross_entropy(given) is not None
    assert operators(fuse_cross_entropy(given)) == operators(given)  # it is small


def test_products_of_other_rows_stay() -> None:
    def folded(x: Any, w: Any, t: Any) -> Any:
        scores = op.dense(op.reshape(x, (3, 8)), op.reshape(w, (22, 2 * FEATURES)))
        return op.cross_entropy(op.reshape(scores, (N, CLASSES)), t)

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(N, FEATURES, generator=generator), torch.randn(22, 8, generator=generator)
    given = infer_type(trace(folded).program(*map(meta.array, (x, w, torch.ones(N).long()))).module)
    assert operators(fuse_cross_entropy(given, least_bytes=0)) == operators(given)


class Trained(meta.Model):
    """A loss whose arrays are parameters."""

    def build(self, loss: Loss) -> None:
        self.loss = loss
        self.x, self.w, self.b = map(parameter, arrays()[:3])

    @trace
    def forward(self, t: Any) -> Any:
        return self.loss(self.x, self.w, self.b, t)


@pytest.mark.parametrize("loss", [biased, of_sentences, ignoring, widened])
def test_a_step_of_training(loss: Loss) -> None:
    """The pass is asked for: by level 3, or by its name."""
    step = value_and_grad(Trained(loss))
    dy, labels = meta.array(torch.tensor(1.0)), arrays()[3]
    expected = step(dy, labels)
    option = {"fuse_cross_entropy": {"least_bytes": 0}}
    with meta.PassContext(required=["fuse_cross_entropy"], config=option):
        executable = meta.vm.compile(step, dy, labels)
        found = executable(dy, labels)
    kernels = executable.kernels()
    assert kernels["torch.linear_cross_entropies_dxwb"] == kernels["torch.linear_cross_entropies"]
    assert "dense" not in " ".join(kernels)
    coarse = loss is widened
    assert found[1].keys() == expected[1].keys()
    for a, b in zip(
        (found[0], *found[1].values()), (expected[0], *expected[1].values()), strict=True
    ):
        check(a, b, 2e-2 if coarse else 1e-5, 2e-2 if coarse else 1e-6)


def test_nothing_of_it_happens_by_itself() -> None:
    step = value_and_grad(Trained(biased))
    dy, labels = meta.array(torch.tensor(1.0)), arrays()[3]
    with meta.PassContext(config={"fuse_cross_entropy": {"least_bytes": 0}}):
        kernels = meta.vm.compile(step, dy, labels).kernels()
    assert "linear_cross_entropies" not in " ".join(kernels)
