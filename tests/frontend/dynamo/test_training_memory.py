"""What training under `torch.compile` keeps for the gradient stays in the memory of CUDA graphs:
here on the CPU, with a stand-in for graphs. Nobody may see it change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.base.errors import GradientError
from meta.frontend.dynamo import compiler, training_memory
from meta.runtime import buffer_replacement
from meta.vm.graphs import link_regions
from tests.frontend.dynamo.models import made
from tests.vm.recorder import Forgetful, TapeRecorder, standing_in


@pytest.fixture(autouse=True)
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    with meta.dialect.exclude("tvm"):  # of which the stand-in records nothing
        yield standing_in(monkeypatch)


class Deep(nn.Module):
    """Layers enough that graphs pay, some of which keep their results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + torch.sin(x)
        return x


class Images(nn.Module):
    """Convolutions of images with channels last, of which results lie in another order of axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 2, padding=1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.view(3, 1, 2, 3).contiguous(memory_format=torch.channels_last))
        for conv in self.convs:
            y = torch.tanh(conv(y)) + torch.sin(y)
        return y.mean((2, 3))


MODELS = {"layers": Deep, "images": Images}
Step = Callable[[nn.Module, int], list[torch.Tensor]]


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 6, generator=torch.Generator().manual_seed(i))


def once(model: nn.Module, i: int) -> list[torch.Tensor]:
    model.zero_grad()
    model(batch(i)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def grads_stay(model: nn.Module, i: int) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=False)
    model(batch(i)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def added_up(model: nn.Module, i: int) -> list[torch.Tensor]:
    model.zero_grad()
    for j in range(3):
        model(batch(3 * i + j)).square().sum().backward()
    return [p.grad for p in model.parameters()]


def two_before_their_gradients(model: nn.Module, i: int) -> list[torch.Tensor]:
    model.zero_grad()
    losses = [model(batch(5 * i + j)).square().sum() for j in range(5)]
    for loss in (*losses[1:], losses[0]):
        loss.backward()
    return [p.grad for p in model.parameters()]


def differentiated_twice(model: nn.Module, i: int) -> list[torch.Tensor]:
    loss = model(batch(i)).square().sum()
    first = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    model(batch(i + 100)).square().sum().backward()
    return [*first, *torch.autograd.grad(loss, [*model.parameters()])]


def never_differentiated(model: nn.Module, i: int) -> list[torch.Tensor]:
    kept = model(batch(i))
    found = once(model, i + 100)
    return [kept.detach(), *found]


def kept_elsewhere(model: nn.Module, i: int) -> list[torch.Tensor]:
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        return once(model, i)


def with_arrays_that_move(model: nn.Module, i: int) -> list[torch.Tensor]:
    found = once(model, i)
    for p in model.parameters():
        p.data = p.data.clone()
    return found


STEPS = [
    once,
    grads_stay,
    added_up,
    two_before_their_gradients,
    differentiated_twice,
    never_differentiated,
    kept_elsewhere,
    with_arrays_that_move,
]


@pytest.mark.product
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("step", STEPS)
def test_gradients_are_torchs(step: Step, kind: str, tape: TapeRecorder) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]()
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="meta", fullgraph=True)
    kept = []
    for i in range(7):
        found, expected = step(run, i), step(other, i)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        kept.append((found, [x.clone() for x in found]))
        for now, then in kept if step is once else ():
            torch.testing.assert_close(now, then, rtol=0, atol=0)
    assert step is with_arrays_that_move or tape.replays


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "tied"])
def test_models_train_as_torchs(name: str) -> None:
    model, inputs = made(name)
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="meta", fullgraph=True)
    steps = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, other)]
    for _ in range(5):
        for f, step in zip((run, other), steps, strict=True):
            step.zero_grad()
            f(*inputs).square().mean().backward()
            step.step()
    torch.testing.assert_close(
        dict(model.state_dict()), dict(other.state_dict()), rtol=1e-4, atol=1e-5
    )


def recordings(graph: Any) -> list[Any]:
    """What was recorded of the program of a graph that runs in its first memory."""
    steps = graph.for_all.executable._graphs.steps
    return [replay for step in steps for replay in step.all_replays()]


def test_nothing_is_copied_between_forward_and_backward(tape: TapeRecorder) -> None:
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for i in range(4):
            once(run, i)
    (ahead,), (back,) = map(recordings, graphs)
    (memory,) = graphs[0].pool._all
    assert len(memory.bundle.offsets) >= 4 and not memory.bundle.moving
    assert len(ahead.copied) == 1 and len(ahead.fresh) == 1
    assert len(back.copied) == 2  # the input, and the gradient of the result
    assert len(back.fresh) == 10 - len(memory.gradients.tensors)  # what ATen allocates


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which Dynamo reads
def test_layers_that_are_one_program(tape: TapeRecorder) -> None:
    model = nn.Sequential(*(Deep() for _ in range(3)))
    same = copy.deepcopy(model)
    for layer in model:
        layer.compile(backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for i in range(8):
            found, expected = once(model, i), once(same, i)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            if i == 5:
                now, moved = tape.recorded, buffer_replacement.replacement_count
                with torch.no_grad():  # in place, where recordings look
                    for p, q in zip(model.parameters(), same.parameters(), strict=True):
                        p.mul_(0.9), q.mul_(0.9)
    assert len(graphs) <= 4 and tape.recorded == now  # the first layer needs no dx of its input
    assert buffer_replacement.replacement_count == moved  # each memory has a layer's parameters
    assert all(len(s.all_replays()) for g in graphs for s in g.for_all.executable._graphs.steps)


def test_nothing_of_a_transformer_is_copied_either(tape: TapeRecorder) -> None:
    model, inputs = made("transformer")  # statistics, parts of projections, views of what is kept
    run = torch.compile(model, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for _ in range(4):
            model.zero_grad()
            run(*inputs).square().sum().backward()
    ((ahead,), (back,)) = map(recordings, graphs)
    (memory,) = graphs[0].pool._all
    allocated = len(memory.bundle.moving)  # by ATen
    assert len(memory.bundle.offsets) >= 4
    assert len(ahead.copied) == 1 and len(ahead.fresh) <= 1 + allocated
    assert len(back.copied) == 2 + allocated


def test_a_gradient_uses_the_memory_of_what_it_has_read() -> None:
    run = torch.compile(nn.Sequential(*(Deep() for _ in range(6))), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        once(run, 0)
    forward, backward = (g.for_all.executable for g in graphs)
    assert forward.workspace is backward.workspace
    apart = [
        sum(i.size for i in e.code.functions["main"].instructions() if hasattr(i, "size"))
        for e in (forward, backward)
    ]
    assert backward.workspace.size < 1.2 * max(apart)


def test_memory_is_as_much_as_forward_passes_that_wait(tape: TapeRecorder) -> None:
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        kept = [run(batch(i)) for i in range(9)]
        pool = graphs[0].pool
        assert len(pool._all) == 9
        torch.testing.assert_close(kept[3], run(batch(3)))
        kept.clear()
        for i in range(training_memory.IDLE + 2):
            once(run, i)
    assert len(pool._all) == 1


@pytest.mark.parametrize("name", ["transformer", "cnn"])
def test_what_is_out_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(monkeypatch, Forgetful)
    model, inputs = made(name)
    run = torch.compile(model, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for _ in range(3):
            model.zero_grad()
            run(*inputs).square().sum().backward()
    (memory,) = graphs[0].pool._all
    assert not memory.token.is_out() and memory.gradients.is_out()
    model.zero_grad()
    assert not memory.gradients.is_out()
    result = run(*inputs)
    assert memory.token.is_out()
    del result
    assert not memory.token.is_out()


def test_gradients_that_are_added_up_do_not_hold_the_memory(tape: TapeRecorder) -> None:
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for i in range(training_memory.IDLE + 4):
            added_up(run, i)
    pool = graphs[0].pool
    assert pool.copies_gradients and len(pool._all) == 1
    assert not pool._all[0].gradients.is_out()
    grad = next(run.parameters()).grad
    assert grad is not None and grad.untyped_storage().nbytes() == grad.nbytes


def test_what_was_used_is_not_read_again() -> None:
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        once(run, 0)
        run.zero_grad()
        result = run(batch(0))
    (memory,) = graphs[0].pool._all
    memory.spend()  # as a gradient that failed half way has
    with pytest.raises(GradientError, match="retain_graph"):
        result.sum().backward()


def test_results_in_the_memory_are_not_taken_for_the_callers(
    tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_regions, "LARGE_RESULT", 1)
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for i in range(3):
            once(run, i)
    assert len(recordings(graphs[0])) == 1
    report = str(graphs[0].for_all.executable.cuda_graph)
    assert report.count("its result is large") == 1  # what the model returns
