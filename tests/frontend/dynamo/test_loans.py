"""What training under `torch.compile` keeps for the gradient stays in the memory of CUDA graphs:
here on the CPU, with a stand-in for graphs. Nobody may see it change.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend.dynamo import compiler
from meta.vm.graphs.borrowed_outputs import Loans, Lot
from tests.frontend.dynamo.models import made
from tests.vm.recorder import Forgetful, TapeRecorder, standing_in


@pytest.fixture(autouse=True)
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    monkeypatch.setattr(compiler, "BOUND_PARAMETERS_ON", ("cpu",))
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


def test_nothing_is_copied_between_forward_and_backward(tape: TapeRecorder) -> None:
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for i in range(4):
            once(run, i)
    forward, backward = (
        next(s for s in g.for_all.executable._graphs.steps if s.all_replays()) for g in graphs
    )
    (ahead,), (back,) = forward.all_replays(), backward.all_replays()
    assert len(ahead.lot.loans) >= 4 and len(ahead.copied) == 1 and len(ahead.fresh) == 1
    assert len(back.lot.loans) == 10 and not back.fresh
    assert len(back.copied) == 2  # the input, and the gradient of the result
    assert {id(loan.tensor) for loan in ahead.lot.loans} <= {id(t) for t in back.kept}


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
                now = tape.recorded
                with torch.no_grad():  # in place, where recordings look
                    for p, q in zip(model.parameters(), same.parameters(), strict=True):
                        p.mul_(0.9), q.mul_(0.9)
    assert len(graphs) <= 4 and tape.recorded == now  # the first layer needs no dx of its input
    assert all(len(s.all_replays()) for g in graphs for s in g.for_all.executable._graphs.steps)


def test_nothing_of_a_transformer_is_copied_either(tape: TapeRecorder) -> None:
    model, inputs = made("transformer")  # statistics, parts of projections, views of what is kept
    run = torch.compile(model, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for _ in range(4):
            model.zero_grad()
            run(*inputs).square().sum().backward()
    steps = [g.for_all.executable._graphs.steps for g in graphs]
    ((ahead,), (back,)) = ([r for s in part for r in s.all_replays()] for part in steps)
    assert (len(ahead.copied), len(ahead.fresh), len(back.copied), len(back.fresh)) == (1, 1, 2, 0)


def test_recordings_are_few_while_loans_are_out(tape: TapeRecorder) -> None:
    run = torch.compile(Deep(), backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        kept = [run(batch(i)) for i in range(9)]
    (forward,) = (s for s in graphs[0].for_all.executable._graphs.steps if s.all_replays())
    assert [bool(r.lot.loans) for r in forward.all_replays()] == [True, True, False]
    torch.testing.assert_close(kept[3], run(batch(3)))


@pytest.mark.parametrize("name", ["transformer", "cnn"])
def test_every_loan_is_seen_to_be_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(monkeypatch, Forgetful)
    model, inputs = made(name)
    run = torch.compile(model, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for _ in range(3):
            model.zero_grad()
            run(*inputs).square().sum().backward()
    steps = graphs[0].for_all.executable._graphs.steps
    (loans,) = [replay.lot.loans for step in steps for replay in step.all_replays()]
    assert len(loans) >= 5 and not any(loan.is_out() for loan in loans)
    result = run(*inputs)
    assert all(loan.is_out() for loan in loans)
    del result
    assert not any(loan.is_out() for loan in loans)


class Meanwhile(TapeRecorder):
    """Lets another thread do something before the recording that is made next ends."""

    then: Callable[[], Any] | None = None

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        replay = super().record(body)
        then, self.then = self.then, None
        if then is not None:
            thread = threading.Thread(target=then)
            thread.start()
            thread.join()
        return replay


@pytest.mark.parametrize("does", ["frees", "takes"])
def test_another_thread_has_loans_while_a_gradient_is_recorded(
    does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = standing_in(monkeypatch, Meanwhile)
    model, inputs = made("transformer")
    run = torch.compile(model, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        run(*inputs).square().sum().backward()
        loss = run(*inputs).square().sum()
        (step,) = (s for s in graphs[0].for_all.executable._graphs.steps if s.all_replays())
        (lot,) = (replay.lot for replay in step.all_replays())
        taken: list[torch.Tensor] = []

        def take() -> None:
            taken.extend(loan.tensor.data for loan in lot.loans)

        if does == "frees":
            take()
        recorder.then = taken.clear if does == "frees" else take
        loss.backward()
    assert recorder.then is None and lot.loans
    assert lot.is_out() == bool(taken) == (does == "takes")
    taken.clear()
    assert not lot.is_out()


def test_tensors_that_a_recording_keeps_are_the_programs() -> None:
    first, second = torch.zeros(4, 3), torch.zeros(5)
    lot = Lot([first, second])
    lot.settle()
    loans = Loans()
    loans.add(lot.loans)
    known = loans.view(lot.loans[0], first.T)
    kept = [first, known, first[1:], first.data, torch.zeros(2), None]
    assert lot.is_out()
    found = loans.hold([*kept, kept[2]])
    assert [(loan.tensor is first, uses) for loan, uses in found] == [(True, 2)]
    assert not lot.is_out()
    given = second.data
    assert lot.is_out()
    del given
    kept.clear()
    for loan, uses in found:
        loan.hold(-uses)
    assert not lot.is_out()
