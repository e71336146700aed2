"""What a forward graph keeps for its gradient by one token: hooks on saved tensors, graphs that run
in PyTorch, what a user may write in between, and when it is let go of.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import meta
from meta.base.errors import ArgumentError
from meta.frontend.dynamo import compiler
from meta.frontend.dynamo.conversion import NoProgram
from tests.vm.recorder import TapeRecorder, standing_in


@pytest.fixture(autouse=True)
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    with meta.dialect.exclude("tvm"):  # of which the stand-in records nothing
        yield standing_in(monkeypatch)


class Mixed(nn.Module):
    """Keeps images with channels last, indices, masks, views of one another, and nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.conv(x.contiguous(memory_format=torch.channels_last)))
        y, _ = nn.functional.max_pool2d(y, 2, return_indices=True)
        y = torch.where(y > 0.1, y, y.sin())
        rows = y.flatten(2).transpose(1, 2)
        q, k, v = torch.tanh(self.qkv(rows)).chunk(3, -1)
        none = torch.exp(rows[:0]).sum()
        return self.out(torch.softmax(q @ k.transpose(1, 2), -1) @ v) + none


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(i))


def pair(model: nn.Module | None = None) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = Mixed() if model is None else model
    other = copy.deepcopy(model)
    return torch.compile(model, backend="meta", fullgraph=True), other


def step(run: Any, model: nn.Module, i: int) -> list[torch.Tensor]:
    model.zero_grad()
    run(batch(i)).square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_autograd_gets_one_token() -> None:
    run, other = pair()
    with compiler.record_compiled_graphs() as graphs:
        for i in range(4):
            same(step(run, run, i), step(other, other, i))
    forward, backward = graphs
    assert forward.kept.count == backward.kept.count >= 6
    result = run(batch(0))
    tokens = [t for t in result.grad_fn.saved_tensors if t.dtype == torch.uint8]
    others = [t for t in result.grad_fn.saved_tensors if t.dtype != torch.uint8]
    assert [t.shape for t in tokens] == [(1,)]
    known = {t.data_ptr() for t in (*run.parameters(), result)}
    assert all(t.data_ptr() in known or t.shape == batch(0).shape for t in others)


@pytest.mark.product
@pytest.mark.parametrize("role", ["forward", "backward", "both"])
@pytest.mark.parametrize("hooked", [False, True])
def test_graphs_that_run_in_torch(role: str, hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    convert, done = compiler.convert_graph, []

    def refuses(graph: Any, *args: Any, **kwargs: Any) -> Any:
        done.append("backward" if done else "forward")
        if role in (done[-1], "both"):
            raise NoProgram("this is not wanted")
        return convert(graph, *args, **kwargs)

    monkeypatch.setattr(compiler, "convert_graph", refuses)
    run, other = pair()
    for i in range(4):
        if hooked and i:
            with saved_tensors_hooks(torch.clone, lambda x: x):
                found = step(run, run, i)
        else:
            found = step(run, run, i)
        same(found, step(other, other, i))
    assert done == ["forward", "backward"]


@pytest.mark.product
@pytest.mark.parametrize("hook", ["clone", "moved", "half"])
@pytest.mark.parametrize("first", [0, 2])
def test_hooks_get_all_bytes(hook: str, first: int) -> None:
    run, other = pair()
    used = {
        "clone": lambda: saved_tensors_hooks(torch.clone, lambda x: x),
        "moved": save_on_cpu,
        "half": lambda: saved_tensors_hooks(
            lambda x: (x.dtype, x.double()), lambda x: x[1].to(x[0])
        ),
    }[hook]
    for i in range(5):
        if i < first:
            same(step(run, run, i), step(other, other, i))
            continue
        with used():
            found = step(run, run, i)
        same(found, step(other, other, i))


def test_a_checkpoint_runs_the_forward_graph_again(tape: TapeRecorder) -> None:
    run, other = pair()
    for i in range(4):
        run.zero_grad()
        checkpoint(run, batch(i), use_reentrant=False).square().sum().backward()
        same([p.grad for p in run.parameters()], step(other, other, i))


def test_hooks_that_return_something_else_are_refused() -> None:
    run, other = pair()
    same(step(run, run, 0), step(other, other, 0))
    with saved_tensors_hooks(lambda x: x, lambda x: x[:0] if x.dtype == torch.uint8 else x):
        result = run(batch(0))
        with pytest.raises(ArgumentError, match="came back as something else"):
            result.sum().backward()


@pytest.mark.parametrize("what", ["parameter", "result"])
def test_what_a_user_writes_in_between_is_an_error_as_in_torch(what: str) -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(torch.tanh(torch.sin(x @ self.weight) @ self.weight))

    run, _ = pair(Products())
    for _ in range(3):
        x = torch.rand(2, 4)
        run(x).sum().backward()
    result = run(x)
    written = {"parameter": run.weight, "result": result}[what]
    with torch.no_grad():
        written.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_what_is_kept_is_let_go_of() -> None:
    run, _ = pair()
    with compiler.record_compiled_graphs() as graphs:
        for i in range(3):
            step(run, run, i)
    gc.collect()

    def waiting() -> int:
        return sum(memory.token.is_out() for memory in graphs[0].pool._all)

    assert waiting() == 0
    results = [run(batch(i)) for i in range(3)]
    assert waiting() == 3
    results[0].sum().backward()
    assert waiting() == 2
    del results
    assert waiting() == 0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo does
def test_a_gradient_that_is_a_kept_value(tape: TapeRecorder) -> None:
    class SavedTensors(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(torch.cos(torch.exp(torch.tanh(torch.sin(x)))))
            return x * 2

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            return ctx.saved_tensors[0]

    run = torch.compile(lambda x: SavedTensors.apply(x), backend="meta", fullgraph=True)
    found = []
    for i in range(5):
        x = torch.rand(3, 4, generator=torch.Generator().manual_seed(i), requires_grad=True)
        run(x).sum().backward()
        found.append((x.grad, torch.cos(torch.exp(torch.tanh(torch.sin(x.detach()))))))
    for grad, expected in found:
        same(grad, expected)
    assert tape.replays


def test_threads(tape: TapeRecorder) -> None:
    run, other = pair()

    def gradient(model: Any, i: int) -> torch.Tensor:
        x = batch(i).requires_grad_()
        (found,) = torch.autograd.grad(model(x).square().sum(), x)
        return found

    for i in range(3):  # compiled here, where "tvm" is excluded
        gradient(run, i)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: gradient(run, i), range(60)))
    for i, grad in enumerate(found):
        same(grad, gradient(other, i))
    assert tape.replays >= 6


@pytest.mark.filterwarnings("ignore:Dynamo does not know")  # the frame that an error looks at
def test_compiled_autograd_that_comes_later_is_refused() -> None:
    layers = (nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    run, x = torch.compile(nn.Sequential(*layers), backend="meta"), torch.randn(2, 4)
    run(x).sum().backward()
    run.zero_grad()
    later = torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager"))
    with later, pytest.raises(ArgumentError, match="only the backend 'meta' knows"):
        run(x).sum().backward()
