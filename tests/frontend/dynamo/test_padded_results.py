"""Scores of a vocabulary that the user gets as the first columns of padded rows, as products write
them: values, how they lie in memory, and who else reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meta.dialect.cublas import epilogues
from meta.frontend.dynamo.compiler import record_compiled_graphs
from meta.vm import PassContext
from tests.dialect.cublas.emulation import emulated

__all__ = ["emulated"]

WIDTH, COLUMNS, WIDE = 16, 67, 72
PADDED = (5 * WIDE, WIDE, 1)
COMPACT = (5 * COLUMNS, COLUMNS, 1)


@pytest.fixture(autouse=True)
def _as_on_cuda(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pad small products on the CPU, which cuBLASLt's emulation computes."""
    monkeypatch.setattr(epilogues, "LEAST_COLUMNS", 64)
    on: dict[str, Any] = {"devices": ("cpu",)}
    with PassContext(config={"align_products": {**on, "least_work": 1}, "carry_padding": on}):
        yield


class Scores(nn.Module):
    """Scores, and what a function makes of them, of the input and of labels."""

    def __init__(self, result: Any, bias: bool = True, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(WIDTH, COLUMNS, bias).to(dtype)
        self.result = result

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return self.result(self.head(x), x, labels)


def inputs(batch: int = 2, seed: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(batch, 5, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


RESULTS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "alone": (lambda y, x, t: y, [PADDED]),
    "of two axes": (lambda y, x, t: y.flatten(0, 1), [PADDED[1:]]),
    "cast": (lambda y, x, t: y.float(), [PADDED]),
    "beside something else": (lambda y, x, t: (x.relu(), y), [(80, 16, 1), PADDED]),
    "beside what is made of them": (lambda y, x, t: (y, y.argmax(-1)), [COMPACT, (5, 1)]),
    "beside a part": (lambda y, x, t: (y, y[:, 1:3]), [COMPACT, COMPACT]),
    "twice": (lambda y, x, t: (y, y), [PADDED, PADDED]),
    "changed": (lambda y, x, t: y.tanh(), [COMPACT]),
    "transposed": (lambda y, x, t: y.mT, [(5 * COLUMNS, 1, COLUMNS)]),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", RESULTS)
def test_what_the_user_gets(name: str, bias: bool) -> None:
    function, strides = RESULTS[name]
    model = Scores(function, bias).eval()
    compiled = torch.compile(model, backend="meta")
    with torch.no_grad(), record_compiled_graphs() as graphs:
        found = [flat(compiled(inputs(seed=seed))) for seed in (0, 1, 2)]
        wide = Scores(function, bias, torch.float64)
        wide.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
        expected = [flat(wide(inputs(seed=seed).double())) for seed in (0, 1, 2)]
    for ys, zs in zip(found, expected, strict=True):  # no call writes what another one returned
        assert [y.stride() for y in ys] == strides
        for y, z in zip(ys, zs, strict=True):
            torch.testing.assert_close(y.double(), z.double(), rtol=1e-2, atol=1e-2)
    (graph,) = graphs
    kernels = graph.programs()[0].executable.kernels()
    padded = any(WIDE in s for s in strides)
    assert kernels.get("cublas.dense_bias_padded" if bias else "cublas.dense_padded", 0) == padded


def test_sizes_that_change() -> None:
    model = Scores(RESULTS["alone"][0]).eval()
    compiled = torch.compile(model, backend="meta", dynamic=True)
    for batch in (2, 3, 7):
        x = inputs(batch)
        with torch.no_grad():
            found, expected = compiled(x), model(x)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_a_graph_behind_reads_them() -> None:
    def result(y: Tensor, x: Tensor, t: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return y.softmax(-1).view(-1, COLUMNS)

    model = Scores(result).eval()
    x = inputs()
    with torch.no_grad(), record_compiled_graphs() as graphs:
        found = torch.compile(model, backend="meta")(x)
        expected = F.softmax(F.linear(x, *model.head.parameters()).double(), -1).view(-1, COLUMNS)
    assert len(graphs) == 2
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-3)


def test_who_writes_them_has_them_alone() -> None:
    model = Scores(lambda y, x, t: (y, x + 1)).eval()
    compiled = torch.compile(model, backend="meta")
    with torch.no_grad():
        first, _ = compiled(inputs())
        kept = first.clone()
        second, _ = compiled(inputs())
        second.zero_()
        third, _ = compiled(inputs())
    assert torch.equal(first, kept) and torch.equal(third, kept)


LOSSES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "outside": (lambda y, x, t: y, PADDED),
    "outside, of a cast": (lambda y, x, t: y.float(), PADDED),
    "inside": (lambda y, x, t: (F.cross_entropy(y.flatten(0, 1).float(), t), y), COMPACT),
    "inside, of what is cast": (
        lambda y, x, t: (F.cross_entropy((z := y.float()).flatten(0, 1), t), z),
        PADDED,
    ),
    "inside, by hand": (lambda y, x, t: (-y.float().log_softmax(-1)[..., 0].mean(), y), PADDED),
}


@pytest.mark.parametrize("name", LOSSES)
def test_training(name: str) -> None:
    function, strides = LOSSES[name]
    labels = torch.arange(10) * 5
    gradients: list[list[Tensor]] = []
    for dtype in (torch.float16, torch.float64):
        model, x = Scores(function, dtype=dtype), inputs().to(dtype)
        run = torch.compile(model, backend="meta") if dtype is torch.float16 else model
        held = []
        for step in range(3):
            given = (x + step).requires_grad_()
            loss, scores = (None, y) if isinstance(y := run(given, labels), Tensor) else y
            held.append(scores)
            assert scores.stride() == (strides if dtype is torch.float16 else COMPACT)
            if loss is None:
                scores.mul_(2)
                loss = F.cross_entropy(scores.view(-1, COLUMNS).double(), labels)
            (loss + scores.double().square().mean()).backward()
            gradients.append([given.grad.double()])
        gradients.append([p.grad.double() for p in model.parameters()])
        gradients.append([scores.detach().double() for scores in held])
    half, count = gradients[: len(gradients) // 2], len(gradients) // 2
    for ours, theirs in zip(half, gradients[count:], strict=True):
        for y, z in zip(ours, theirs, strict=True):
            torch.testing.assert_close(y, z, rtol=2e-2, atol=1e-2)
