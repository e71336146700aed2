"""Regions of a program that are recorded and replayed, on the CPU: `recorder.py` stands in for
CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import CaptureError, OutOfMemory
from meta.dialect.core import OpEnv
from meta.model import Linear, Model, Sequential, trace
from meta.optim import with_sgd
from meta.runtime.allocate import is_only_read
from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.random import Generator, record_keys, replay_keys
from meta.testing import check
from meta.vm import compilation
from meta.vm.compiler import bytecode as bc
from meta.vm.executable import Executable
from meta.vm.graphs import capture
from tests.vm.recorder import TapeRecorder, chain, standing_in


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    """Programs compiled here are recorded by a stand-in."""
    yield standing_in(monkeypatch)


KEY = partial(op.random_key, "cpu")


def both(model: Any, *args: Any) -> tuple[Executable, Executable]:
    """The program with graphs, and without."""
    recorded = meta.vm.compile(model, *args)
    return recorded, meta.vm.compile(model, *args, cuda_graph=False)


def random(*shape: int) -> meta.ndarray:
    return meta.random.normal(shape)


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


def test_views_of_results_stay(tape: TapeRecorder) -> None:
    run, plain = both(trace(lambda x: op.reshape(chain(x), (3, 2))), random(2, 3))
    kept = []
    for _ in range(4):
        x = random(2, 3)
        kept.append((run(x), plain(x)))
    assert tape.replays == 2
    for found, expected in kept:
        check(found, expected, 0, 0)


def network() -> Model:
    class Net(Model):
        def build(self) -> None:
            self.body = Sequential(Linear(5, 7), Linear(7, 4))

        @trace
        def forward(self, x: Any, label: Any) -> Any:
            hidden, _, _ = op.dropout_train(x, 0.4, KEY())
            return op.cross_entropy(self.body(hidden), label)

    return Net()


def test_training_with_random_numbers_is_the_same_bit_for_bit(tape: TapeRecorder) -> None:
    initial, losses, states = network(), [], []
    x, label = random(6, 5), meta.array(np.arange(6) % 4)
    one = meta.array(np.ones((), "float32"))
    for wanted in (None, False):
        meta.random.seed(5)
        model = network()
        model.load_state_dict(initial.state())
        step = meta.vm.compile(with_sgd(0.1, 0.9)(model), one, x, label, cuda_graph=wanted)
        losses.append([step(one, x, label).item() for _ in range(6)])
        states.append({n: a.torch().clone() for n, a in model.state().items()})
        losses[-1].append(meta.random.uniform((1,)).item())
    assert losses[0] == losses[1] and len(set(losses[0])) > 4
    assert tape.replays == 4
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])


@trace
def descend(state: Any, velocity: Any, x: Any) -> Any:
    state, velocity = op.sgd(state, chain(x), velocity, 0.1, 0.9)
    return op.sum(state + velocity)


def test_inputs_that_are_written_are_copied_back(tape: TapeRecorder) -> None:
    x, states = random(4), [[meta.array(torch.ones(4)) for _ in range(2)] for _ in range(2)]
    run, plain = both(descend, *states[0], x)
    for _ in range(4):
        check(run(*states[0], x), plain(*states[1], x), 0, 0)
        check(states[0], states[1], 0, 0)
    assert tape.replays == 2


def test_an_input_that_is_written_through_a_view(tape: TapeRecorder) -> None:
    @trace
    def model(state: Any, velocity: Any, x: Any) -> Any:
        y = chain(x)
        flat, _ = op.sgd(op.reshape(state, (4,)), y, velocity, 0.1, 0.9)
        return op.sum(flat)

    x, states = random(4), [[meta.array(torch.ones(2, 2)), random(4)] for _ in range(2)]
    states[1][1].update(states[0][1])
    run, plain = both(model, *states[0], x)
    for _ in range(4):
        check(run(*states[0], x), plain(*states[1], x), 0, 0)
        check(states[0], states[1], 0, 0)
    assert tape.replays == 2


def test_two_inputs_in_one_memory(tape: TapeRecorder) -> None:
    """Copies would not see each other's writes."""
    one, two, x = meta.array(torch.ones(4)), meta.array(torch.ones(4)), random(4)
    run, plain = both(descend, one, random(4), x)
    for _ in range(2):
        run(one, random(4), x)
    one.update(torch.ones(4))
    for _ in range(2):
        check(run(one, one, x), plain(two, two, x), 0, 0)
    check(one, two, 0, 0)
    assert tape.recorded == 1 and tape.replays == 0


def test_two_inputs_in_one_memory_when_it_is_recorded(tape: TapeRecorder) -> None:
    one, two, x = meta.array(torch.ones(4)), meta.array(torch.ones(4)), random(4)
    run, plain = both(descend, one, random(4), x)
    run(random(4), random(4), x)
    for _ in range(2):
        check(run(one, one, x), plain(two, two, x), 0, 0)
    check(one, two, 0, 0)
    assert tape.recorded == 0
    run(one, random(4), x)
    assert tape.recorded == 1


class Descent(Model):
    """Reads one array, and writes another one, through a view, and a third."""

    def build(self) -> None:
        self.factor, self.place, self.velocity = random(4), random(2, 2), random(4)

    @trace
    def forward(self, x: Any) -> Any:
        flat = op.reshape(self.place, (4,))
        flat, _ = op.sgd(flat, chain(x * self.factor), self.velocity, 0.1, 0.9)
        return op.sum(flat)


def test_kernels_know_which_arrays_their_graph_only_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[bool]] = []
    arrays: list[meta.ndarray] = []

    class Asking(TapeRecorder):
        def record(self, body: Any, agree: Any = None) -> Any:
            asked.append([is_only_read(a.tensor) for a in arrays])
            return super().record(body, agree)

    tape = standing_in(monkeypatch, Asking)
    model, x = Descent(), random(4)
    run = meta.vm.compile(model, x)
    arrays += [model.factor, model.place, model.velocity, x]
    for _ in range(3):
        run(x)
    assert tape.recorded == 1
    assert asked == [[True, False, False, False]]
    assert not any(is_only_read(a.tensor) for a in arrays), "no graph is being recorded"


def test_parameters_that_move(tape: TapeRecorder) -> None:
    model = Sequential(Linear(3, 4), Linear(4, 4), Linear(4, 4), Linear(4, 2))
    x = random(2, 3)
    run = meta.vm.compile(model, x)
    for _ in range(3):
        run(x)
    assert tape.recorded == 1
    weight = run.arrays[0]
    replace_buffer(weight, weight.tensor * 2)
    for _ in range(3):
        check(run(x), model(x), 1e-6, 1e-6)
    assert tape.recorded == 2


def test_parameters_that_take_turns(tape: TapeRecorder) -> None:
    model = Sequential(Linear(3, 4), Linear(4, 4), Linear(4, 4), Linear(4, 2))
    x = random(2, 3)
    run = meta.vm.compile(model, x)
    weight = run.arrays[0]
    places = [weight.tensor * (i + 1) for i in range(3)]
    for turn in range(6):
        for place in places:
            replace_buffer(weight, place.detach())
            check(run(x), model(x), 1e-6, 1e-6)
        if turn == 3:
            assert tape.recorded == 3  # each is kept
            places[1].mul_(3)  # in place: what was recorded reads it
        if turn == 4:
            places[1] = places[1] * 2  # elsewhere
    assert tape.recorded == 3
    for _ in range(2):
        replace_buffer(weight, places[1])
        check(run(x), model(x), 1e-6, 1e-6)
    assert tape.recorded == 4


def test_turns_of_many_places(tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_BINDINGS", 3)
    model = Sequential(Linear(3, 4), Linear(4, 4), Linear(4, 4), Linear(4, 2))
    x = random(2, 3)
    run = meta.vm.compile(model, x)
    weight = run.arrays[0]
    places = [weight.tensor * (i + 1) for i in range(5)]
    for _ in range(4):
        for place in places:
            replace_buffer(weight, place)
            for _ in range(3):
                check(run(x), model(x), 1e-6, 1e-6)
            for step in run._graphs.steps:
                assert len(step.recordings) <= 3 and step.status.graphs == len(step.all_replays())


def test_memory_of_parameters_that_is_given_back_and_taken_again(tape: TapeRecorder) -> None:
    model = Sequential(Linear(3, 4), Linear(4, 4), Linear(4, 4), Linear(4, 2))
    x = random(2, 3)
    run = meta.vm.compile(model, x)
    weight = run.arrays[0]
    ours = [weight.tensor.clone() for _ in range(2)]
    storages = [t.untyped_storage() for t in ours]
    for i in range(6):
        for t, storage in zip(ours, storages, strict=True):
            storage.resize_(0)
            hole = torch.empty(12)  # where it was
            storage.resize_(48)
            t.copy_(torch.randn(t.shape))
            replace_buffer(weight, t.detach())
            check(run(x), model(x), 1e-6, 1e-6)
            if i % 2:
                check(run(x), model(x), 1e-6, 1e-6)
            del hole


def test_kernels_that_a_graph_cannot_hold(tape: TapeRecorder) -> None:
    """They are named, and what stands on both sides is recorded."""
    f = trace(lambda x: chain(op.dropout(chain(x), 0.5)))
    x = random(8)
    run, plain = both(f, x)
    for _ in range(4):
        meta.random.seed(1)
        found = run(x)
        meta.random.seed(1)
        check(found, plain(x), 0, 0)
    assert len(run.cuda_graph.regions) == 2 and tape.replays == 4
    assert any("dropout_train: its random key" in reason for reason in run.cuda_graph.alone)


def loop(x: Any, w: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, chain(op.matmul(state[1], w)) + op.exp(state[1])

    return meta.while_loop(lambda state: state[0] < 5, body, (meta.array(0), x))[1]


def test_a_loop_is_segments_between_decisions(tape: TapeRecorder) -> None:
    x, w = random(3, 3), random(3, 3)
    run, plain = both(trace(loop), x, w)
    for _ in range(3):
        x = random(3, 3)
        check(run(x, w), plain(x, w), 0, 0)
    assert run.cuda_graph and tape.recorded >= 1 and tape.replays >= 10


class Blocks(Model):
    """One function that is called with the weights of three layers."""

    def build(self) -> None:
        self.weights = [random(4, 4) for _ in range(3)]

    @trace
    def forward(self, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, y = state
            return i + 1, chain(op.matmul(y, self.weights[0])) + op.matmul(y, self.weights[1])

        return meta.while_loop(lambda state: state[0] < 4, body, (meta.array(0), x))[1]


def test_weights_in_a_loop_are_not_copied(tape: TapeRecorder) -> None:
    model, x = Blocks(), random(2, 4)
    run, plain = both(model, x)
    for _ in range(3):
        check(run(x), plain(x), 0, 0)
    (step,) = (s for s in run._graphs.steps if s.all_replays())
    ((recorded,),) = (step.recordings.values(),)
    assert len(recorded.watched) == 2, "the weights have fixed addresses"
    (replay,) = step.all_replays()
    assert all(t.shape != (4, 4) for _, t in replay.copied)


def test_a_stream_that_somebody_else_records(tape: TapeRecorder) -> None:
    run = meta.vm.compile(trace(chain), random(3))
    tape.busy = True
    for _ in range(3):
        run(random(3))
    assert tape.recorded == 0


def reads(kernel: Any, *values: Any) -> Any:
    """A kernel that looks at its argument on the host."""
    return kernel(*values) if float(values[0].sum()) < 1e9 else None


@pytest.mark.parametrize("stated", [False, True])
def test_a_kernel_that_cannot_be_recorded(
    tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch, stated: bool
) -> None:
    """The program says which and runs on, in more graphs; where they are required, it raises."""
    bind = compilation.bind_kernels

    def bound(refs: Any, *args: Any) -> Any:
        envs = []
        for ref, env in zip(refs, bind(refs, *args), strict=True):
            if ref.name == "torch.erf":
                why = "it reads its argument on the host" if stated else ""
                run = partial(reads, env.run)
                env = OpEnv(run, env.allocates, dialect_op=env.dialect_op, not_capturable=why)
            envs.append(env)
        return tuple(envs)

    monkeypatch.setattr(compilation, "bind_kernels", bound)
    model = trace(lambda x: chain(op.erf(chain(op.dropout_train(x, 0.5, KEY())[0]))))
    x = random(64)
    run, plain = both(model, x)
    for _ in range(5):
        meta.random.seed(2)
        found = run(x)
        meta.random.seed(2)
        check(found, plain(x), 0, 0)
    why = "it reads its argument" if stated else "recording it failed: RuntimeError"
    assert any(reason.startswith(f"torch.erf: {why}") for reason in run.cuda_graph.alone)
    assert [r.kernels for r in run.cuda_graph.regions] == [6, 4]  # a mask, its use, and chains
    assert tape.recorded == 2 and tape.replays >= 4
    required = meta.vm.compile(model, x, cuda_graph=True)
    required(x)
    if stated:
        required(x)
        return
    with pytest.raises(CaptureError, match=r"torch\.erf: .*is capturing") as caught:
        required(x)
    code = required.code
    invokes = [i for i in code.functions[code.entry].instructions() if isinstance(i, bc.Invoke)]
    (erf,) = [i for i in invokes if code.kernels[i.kernel].name == "torch.erf"]
    assert caught.value.span == erf.span


def test_workspaces_that_kernels_say_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = compilation.bind_kernels
    made = [OpEnv(torch.exp, allocates=True, workspace=lambda: 4096).wrap(lambda run: run)]
    monkeypatch.setattr(compilation, "bind_kernels", lambda *args: made * len(bind(*args)))
    run = meta.vm.compile(trace(lambda x: op.exp(x)), random(3))
    assert run.memory().workspaces == 4096 and "workspaces 4,096" in str(run.memory())


def test_nothing_to_record(tape: TapeRecorder) -> None:
    x = random(3)
    run = meta.vm.compile(trace(lambda x: op.exp(x)), x)
    assert not run.cuda_graph and "4 kernels in a row" in run.cuda_graph.why_not
    with pytest.raises(CaptureError, match="4 kernels"):
        meta.vm.compile(trace(lambda x: op.exp(x)), x, cuda_graph=True)


def test_on_the_cpu() -> None:
    x = random(3)
    run = meta.vm.compile(trace(chain), x)
    assert str(run.cuda_graph) == "no CUDA graph: the device is cpu"
    with pytest.raises(CaptureError, match="only CUDA has CUDA graphs"):
        meta.vm.compile(trace(chain), x, cuda_graph=True)
    with meta.base.config.override(META_CUDA_GRAPH=False):
        assert "META_CUDA_GRAPH is off" in meta.vm.compile(trace(chain), x).cuda_graph.why_not


def test_another_precision_of_products_is_not_that_of_the_graph(tape: TapeRecorder) -> None:
    run = meta.vm.compile(trace(chain), random(3))
    for _ in range(3):
        run(random(3))
    with meta.base.config.override(META_TF32=True):
        run(random(3))
    assert tape.replays
    run(random(3))
    assert tape.replays == 2


def test_finite_checks_come_first(tape: TapeRecorder) -> None:
    with meta.base.config.override(META_DEBUG_NANS="inf"):
        run = meta.vm.compile(trace(chain), random(3))
        for _ in range(3):
            run(random(3))
    assert tape.recorded == 0 and "META_DEBUG_NANS" in run.cuda_graph.why_not


def test_keys_drawn_together_are_those_drawn_one_by_one() -> None:
    for seed in (0, 7, 2**63 - 1):
        one, many = Generator(seed), Generator(seed)
        expected = [one.key() for _ in range(9)]
        assert [*many.keys(4), many.key(), *many.keys(4)] == expected
        assert one.state() == many.state()
    with record_keys() as drawn:
        found = many.keys(3).tolist()
    assert drawn == found
    with replay_keys(drawn):
        assert many.keys(3).tolist() == drawn


def test_no_memory_for_a_graph(tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run one by one. Where graphs are required it is an error; the next call records."""
    x = random(2, 3)
    run = meta.vm.compile(trace(chain), x)
    required = meta.vm.compile(trace(chain), x, cuda_graph=True)
    expected = run(x)
    required(x)

    def full(body: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(tape, "record", full)
        check(run(x), expected, 0, 0)
        with pytest.raises(OutOfMemory, match="memory_budget"):
            required(x)
    assert "OutOfMemoryError" in str(run.cuda_graph) and tape.recorded == 0
    check(run(x), expected, 0, 0)
    check(required(x), expected, 0, 0)
    assert tape.recorded == 1 and required.cuda_graph


LARGE = 1 << 22
"""Elements of a result of 16 MiB."""


@pytest.mark.parametrize("extent", [LARGE // 4, LARGE])
@pytest.mark.parametrize(
    ("program", "is_last"),
    [
        (lambda x: (op.sin(chain(x)),), True),
        (lambda x: (op.reshape(op.sin(chain(x)), (2, -1)),), True),
        (lambda x: (op.sin(y := chain(x)), op.sum(chain(y))), True),
        (lambda x: (op.sin(y := chain(x)), op.cos(y), op.sum(y)), True),
        (lambda x: (y := op.sin(chain(x)), op.sum(y)), False),  # a kernel reads it
        (lambda x: (y := op.sin(chain(x)), y), False),  # it is there twice
    ],
)
@pytest.mark.long
def test_large_results_are_computed_where_the_caller_has_them(
    tape: TapeRecorder, program: Any, is_last: bool, extent: int
) -> None:
    run, plain = both(trace(program), random(extent))
    results = []
    for _ in range(3):
        x = random(extent)
        results.append((run(x), plain(x)))
    for found, expected in results:  # later runs do not write over what was handed out
        for a, b in zip(found, expected, strict=True):
            check(a, b, 0, 0)
    assert tape.replays
    assert ("its result is large" in str(run.cuda_graph)) == (is_last and extent == LARGE)
