"""Regions of a program that are recorded and replayed, on the CPU: `recorder.py` stands in for
CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.model import Linear, Model, Sequential, trace
from meta.optim.sgd import with_sgd
from meta.testing import check
from meta.vm import executable, graphs
from meta.vm.executable import Executable
from tests.vm.recorder import TapeRecorder


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    """Programs compiled here are recorded by a stand-in."""
    recorder = TapeRecorder()

    def graphs_for(code: Any, arrays: int, device: Any, wanted: bool | None) -> Any:
        if wanted is False:
            return None, "cuda_graph=False"
        return graphs.Graphs(code, arrays, CPU, recorder, bool(wanted)), ""

    monkeypatch.setattr(executable, "graphs_for", graphs_for)
    yield recorder


def both(model: Any, *args: Any) -> tuple[Executable, Executable]:
    """The program with graphs, and without."""
    recorded = meta.vm.compile(model, *args)
    return recorded, meta.vm.compile(model, *args, cuda_graph=False)


def random(*shape: int) -> meta.ndarray:
    return meta.random.normal(shape)


def chain(x: Any) -> Any:
    for f in (op.exp, op.tanh, op.sin, op.cos):
        x = f(x)
    return x


def test_it_runs_is_recorded_and_replayed(tape: TapeRecorder) -> None:
    run, plain = both(trace(lambda x: (chain(x), x, op.reshape(x, (3, 2)))), random(2, 3))
    assert run.cuda_graph and "to be recorded" in str(run.cuda_graph)
    kept = []
    for i in range(5):
        x = random(2, 3)
        found, same, view = run(x)
        assert (tape.recorded, tape.replays) == (int(i > 0), max(0, i - 1))
        check(found, plain(x)[0], 0, 0)
        assert same.torch().data_ptr() == view.torch().data_ptr() == x.torch().data_ptr()
        kept.append((found, found.torch().clone()))
    for found, then in kept:  # later runs do not write over what was handed out
        check(found, then, 0, 0)
    assert "4 kernels of @main as a CUDA graph, recorded" in str(run.cuda_graph)
    assert "recorded" in str(run.explain()) and "CUDA graphs" in repr(run)
    assert run.memory().graphs == 1234 and "CUDA graphs 1,234" in str(run.memory())


def network() -> Model:
    class Net(Model):
        def build(self) -> None:
            self.body = Sequential(Linear(5, 7), Linear(7, 4))

        @trace
        def forward(self, x: Any, label: Any) -> Any:
            hidden, _, _ = op._contrib_dropout(x, 0.4, op.random_key("cpu"))
            return op.cross_entropy(label, self.body(hidden))

    return Net()


def test_training_with_random_numbers_is_the_same_bit_for_bit(tape: TapeRecorder) -> None:
    initial, losses, states = network(), [], []
    x, label = random(6, 5), meta.array(np.arange(6) % 4)
    one = meta.array(np.ones((), "float32"))
    for wanted in (None, False):
        meta.random.seed(5)
        model = network()
        model.load_state(initial.state())
        step = meta.vm.compile(with_sgd(0.1, 0.9)(model), one, x, label, cuda_graph=wanted)
        losses.append([step(one, x, label).item() for _ in range(6)])
        states.append({n: a.torch().clone() for n, a in model.state().items()})
        losses[-1].append(meta.random.uniform((1,)).item())
    assert losses[0] == losses[1] and len(set(losses[0])) > 4
    assert tape.replays == 4
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
