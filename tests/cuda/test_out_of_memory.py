"""Memory that there is not on a GPU: an eager call, compiling, running, preparing and recording say
what was planned and what is free, nothing of what failed is kept, and the same call works once
there is room.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import OutOfMemory
from meta.dialect import only
from meta.model import Linear, Model, Sequential, trace
from meta.testing import check
from meta.vm.graphs import link_regions
from tests.vm.recorder import chain

pytestmark = pytest.mark.cuda
MB = 1 << 20
DIALECTS = [("torch",), ("tvm", "torch", "cuda", "cublas")]


@contextmanager
def left(room: int) -> Iterator[int]:
    """Leave so many bytes to this process, besides what torch's allocator has in pieces: those,
    of which the large ones are taken.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    taken = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in large_pieces()]
    total, reserved = torch.cuda.mem_get_info()[1], torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((reserved + room) / total)
    try:
        yield reserved - torch.cuda.memory_allocated()
    finally:
        taken.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)


def large_pieces() -> list[int]:
    """Return the bytes of the free blocks of a megabyte or more, the largest first."""
    segments = torch.cuda.memory_snapshot()
    blocks = [b for s in segments if s["segment_pool_id"] == (0, 0) for b in s["blocks"]]
    sizes = [b["size"] for b in blocks if b["state"] == "inactive"]
    return sorted((size for size in sizes if size > MB), reverse=True)


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def failure(call: Callable[[], Any], room: int, hint: str, keeps: int = 0) -> OutOfMemory:
    """Return the error of a call that has so many bytes, and check that it is a good one and that
    the call has kept no memory, or so much.
    """
    before = allocated()
    with left(room) as pieces, pytest.raises(OutOfMemory, match="memory on cuda:0") as caught:
        call()
    error = caught.value
    assert error.planned is not None and error.free is not None
    assert 0 <= error.free <= room + pieces
    text = str(error)
    assert f"{error.planned:,} bytes" in text and f"{error.free:,} bytes free" in text
    assert hint in text and error.__context__ is None
    del caught
    error.__traceback__ = None  # of the caller's own frames
    assert allocated() - before == keeps, text
    return error


def random(*shape: int) -> meta.ndarray:
    return meta.array(torch.randn(shape, device="cuda"))


@pytest.mark.parametrize("dialects", DIALECTS, ids="+".join)
def test_an_eager_call(dialects: tuple[str, ...]) -> None:
    with only(*dialects):
        x, w = random(4096, 4096), random(4096, 4096)
        for call in (lambda: x + w, lambda: op.dense(x, w), lambda: op.softmax(x)):
            call()  # libraries take what they keep
            assert failure(call, 32 * MB, "compile the model").planned == 64 * MB
            check(op.softmax(x), torch.softmax(x.torch(), -1), 1e-5, 1e-6)


def test_a_gradient() -> None:
    x = random(4096, 4096)
    x.requires_grad = True
    loss = op.sum(op.tanh(x) * op.exp(x))
    assert failure(loss.backward, 32 * MB, "compile the model").planned == 64 * MB
    loss.backward()
    y = x.torch().double()
    check(x.grad, y.exp() * (1 - y.tanh() ** 2 + y.tanh()), 1e-4, 1e-4)


def test_an_array() -> None:
    data = torch.ones(16 * MB)
    error = failure(lambda: meta.array(data, device="cuda"), 32 * MB, "smaller")
    assert error.planned == 64 * MB
    network = Linear(4096, 4096)
    failure(lambda: network.to(device="cuda"), 32 * MB, "smaller")
    x = torch.randn(3, 4096)
    expected = network(meta.array(x)).torch()
    network.to(device="cuda")
    check(network(meta.array(x, device="cuda")), expected, 1e-4, 1e-4)


@pytest.mark.parametrize("dialects", DIALECTS, ids="+".join)
def test_intermediate_results_of_a_program(dialects: tuple[str, ...]) -> None:
    """They are allocated when it is compiled."""
    with only(*dialects):
        x = random(16, MB)
        model = trace(lambda x: op.sum(op.cumsum(x, 0) * op.cumsum(op.exp(x), 0)))
        error = failure(lambda: meta.vm.compile(model, x), 32 * MB, "memory_budget")
        assert "intermediate results" in str(error) and (error.planned or 0) >= 64 * MB
        check(meta.vm.compile(model, x)(x), model(x), 1e-4, 1e-2)


@pytest.mark.parametrize("dialects", DIALECTS, ids="+".join)
def test_results_of_a_program(dialects: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are allocated when it runs: kernel by kernel, and as a graph."""
    monkeypatch.setattr(link_regions, "LARGE_RESULT", 1 << 40)  # all in the graph
    with only(*dialects):
        x = random(16, MB)
        run = meta.vm.compile(trace(chain), x)
        for _ in range(3):
            assert (failure(lambda: run(x), 16 * MB, "memory_budget").planned or 0) >= 64 * MB
            check(run(x), chain(x), 1e-5, 1e-5)
        if dialects == ("torch",):
            assert [r.graphs for r in run.cuda_graph.regions] == [1]


def test_preparing() -> None:
    """The weights in half precision, which are made before the first call."""
    network = Sequential(Linear(4096, 4096), Linear(4096, 4096)).to(device="cuda").eval()
    x = random(16, 4096)
    run = meta.vm.compile(meta.amp.autocast(network, "float16"), x)
    weights = 2 * (4096 + 1) * 4096 * 2
    for room, planned, keeps in (
        (16 * MB, weights, 0),
        (40 * MB, weights, 0),  # for one of the two
        (80 * MB, 4096 * 4096 * 2, weights),  # for both, and not to compute them besides
    ):
        assert failure(lambda: run(x), room, "memory_budget", keeps).planned == planned
    for _ in range(3):
        check(run(x), network(x), 2e-2, 2e-2)


RECORDED = [
    # For two results at a time, as a call needs, and not for a copy of the argument besides.
    (trace(chain), 144 * MB),
    # Not even for the copy.
    (trace(lambda x: chain(op.sum(x, 0))), 32 * MB),
]


@pytest.mark.parametrize(("model", "room"), RECORDED, ids=["result", "argument"])
def test_recording(model: Model, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for a call, and not for a graph besides: kernels run one by one from then on;
    where graphs are required it is an error, and they are recorded when there is room.
    """
    monkeypatch.setattr(link_regions, "LARGE_RESULT", 1 << 40)  # all in the graph
    x = random(16, MB)
    with only("torch"):
        run = meta.vm.compile(model, x)
        required = meta.vm.compile(model, x, cuda_graph=True)
        expected = run(x).torch().clone()
        required(x)
        with left(room):
            check(run(x), expected, 0, 0)
        assert "OutOfMemory" in str(run.cuda_graph), run.cuda_graph
        check(run(x), expected, 0, 0)
        failure(lambda: required(x), room, "memory_budget")
        check(required(x), expected, 0, 0)
        assert [r.graphs for r in required.cuda_graph.regions] == [1]
