"""Compiled steps that hold collectives as CUDA graphs, which `tests/vm/recorder.py` stands in for:
ranks record alike, and not at all what one of them cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import op
from meta.base.errors import CaptureError, DistributedError
from meta.dialect import only
from meta.vm.graphs import rank_agreement
from tests.distributed.test_simulated_mesh import CALLS, values
from tests.distributed.training import MAKERS, trained
from tests.vm.recorder import TapeRecorder, chain, let_recording_fail, standing_in


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    """Programs compiled here are recorded by a stand-in."""
    yield standing_in(monkeypatch)


@pytest.mark.parametrize("name", CALLS)
def test_collectives_are_recorded(tape: TapeRecorder, name: str) -> None:
    call, expected = CALLS[name]

    def rank() -> Any:
        traced = meta.model.trace(lambda x: chain(call(chain(x))))
        run = meta.vm.compile(traced, meta.array(values(2)[0]), cuda_graph=True)
        return [run(meta.array(values(2, i)[dist.rank("dp")])).numpy() for i in range(4)]

    with only("torch", "gloo"):
        found = dist.simulate(2).run(rank)
    assert (tape.tried, tape.recorded, tape.replays) == (2, 2, 4)

    def wanted(x: Any) -> Any:
        return np.cos(np.sin(np.tanh(np.exp(x))))

    for i in range(4):
        given = expected(wanted(values(2, i)))
        for one, whole in zip(found, given, strict=True):
            np.testing.assert_allclose(one[i], wanted(whole), rtol=1e-12)


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_recorded(tape: TapeRecorder, name: str) -> None:
    alone = trained(name, False)
    with only("torch", "gloo"):
        found = dist.simulate(2).run(trained, name, True, "dp")
    assert tape.recorded == tape.tried == 2 and tape.replays == 4
    for state in found:
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=key)


def recorded(body: Any, runs: int = 4, **options: Any) -> tuple[list[Any], str]:
    """Run a function of an array, compiled, on arrays of this rank."""
    x = meta.array(values(2)[0])
    run = meta.vm.compile(meta.model.trace(body), x, **options)
    results = [run(meta.array(values(2, i)[dist.rank("dp")])).numpy() for i in range(runs)]
    return results, str(run.cuda_graph)


def failing_on(place: int, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """Let the kernel of `sin` fail on one rank, while it is recorded."""
    let_recording_fail(monkeypatch, "torch.sin", error, lambda: dist.rank("dp") == place)


def body(x: Any) -> Any:
    return chain(dist.all_reduce(op.cos(chain(op.cos(x))), "dp") / 3.0) + dist.all_reduce(x, "dp")


def test_what_fails_on_one_rank_is_recorded_on_none(
    tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with only("torch", "gloo"):
        plain = dist.simulate(2).run(recorded, body)
        failing_on(1, monkeypatch, ZeroDivisionError)
        found = dist.simulate(2).run(recorded, body)
        with pytest.raises(CaptureError, match=r"rank dp=1: ZeroDivisionError: not this one"):
            dist.simulate(2).run(lambda: recorded(body, cuda_graph=True))
    for (results, report), (expected, _) in zip(found, plain, strict=True):
        np.testing.assert_array_equal(results, expected)
        assert "torch.sin: recording it failed: CaptureError: rank dp=1: ZeroDivision" in report


def test_memory_that_one_rank_lacks(tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_on(0, monkeypatch, MemoryError)
    with only("torch", "gloo"):
        found = dist.simulate(2).run(recorded, body)
    assert not tape.recorded
    for _, report in found:
        assert "no CUDA graph: recording it failed: OutOfMemory: rank dp=0: MemoryError" in report


def test_ranks_that_would_not_record_alike(tape: TapeRecorder) -> None:
    """One writes to an argument that is given twice, which no graph can."""

    def rank() -> Any:
        def step(x: Any, y: Any) -> Any:
            op.multi_tensor_axpby([dist.all_reduce(chain(x), "dp")], [y], 1.0, 1.0)
            return chain(x)

        x, y = meta.array(values(2)[0]), meta.array(values(2)[1])
        run = meta.vm.compile(meta.model.trace(step), x, y)
        for _ in range(3):
            run(x, x if dist.rank("dp") else y)
        return str(run.cuda_graph)

    with only("torch", "gloo"):
        for report in dist.simulate(2).run(rank):
            assert "the ranks differ: is not recorded; is recorded" in report
    assert not tape.recorded


def test_a_failure_between_collectives_ends_all(
    tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trial did not show: who knows what the others have waited for."""

    def fails(what: Any, agree: Any) -> None:
        agree(RuntimeError("the network is gone") if dist.rank("dp") else None)

    monkeypatch.setattr(tape, "record", fails)
    with only("torch", "gloo"), pytest.raises(DistributedError, match=r"rank dp=1: Runtime.*gone"):
        dist.simulate(2).run(recorded, lambda x: chain(dist.all_reduce(chain(x), "dp")))


def test_graphs_are_released(tape: TapeRecorder) -> None:
    def rank() -> Any:
        x = meta.ones(3)
        run = meta.vm.compile(meta.model.trace(lambda x: chain(dist.all_reduce(x, "dp"))), x)
        run(x), run(x)
        return run

    with only("torch", "gloo"):
        runs = dist.simulate(2).run(rank)
    for run in runs:
        assert "as a CUDA graph, recorded" in str(run.cuda_graph)
    rank_agreement.release()
    for run in runs:
        assert "as a CUDA graph, to be recorded" in str(run.cuda_graph)
