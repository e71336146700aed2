"""Compiled programs as CUDA graphs: the same results as without, bit for bit where kernels are, and
memory that neither grows nor runs out unnoticed.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import Device
from meta.base.errors import CaptureError, OutOfMemory
from meta.dialect import only
from meta.model import BatchNorm, Dropout, Linear, Model, trace
from meta.optim import with_adamw
from meta.runtime.out_of_memory import free_bytes
from meta.testing import check
from meta.vm import compile
from tests.vm.recorder import chain

pytestmark = pytest.mark.cuda
DIALECTS = [("tvm",), ("torch",), ("tvm", "torch", "cuda")]


def on_gpu(*tensors: torch.Tensor) -> list[meta.ndarray]:
    return [meta.array(t, device="cuda") for t in tensors]


def random(*shape: int) -> meta.ndarray:
    return meta.array(torch.randn(shape), device="cuda")


class Network(Model):
    """Running statistics, dropout, a loss."""

    def build(self) -> None:
        self.norm = BatchNorm(3)
        self.drop = Dropout(0.3)
        self.fc = Linear(3 * 16, 10)

    @trace
    def forward(self, x: Any, label: Any) -> Any:
        y = op.max_pool2d(op.relu(self.norm(x)), 2, 2)
        return op.cross_entropy(self.fc(self.drop(op.batch_flatten(y))), label)


def inputs(n: int = 6) -> list[meta.ndarray]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 3, 8, 8, generator=generator)
    label = torch.randint(0, 10, (n,), generator=generator)
    return on_gpu(torch.ones(()), x, label)


def trained(initial: Model, wanted: bool | None, steps: int = 7) -> tuple[Any, list[Any], Any]:
    meta.random.seed(5)
    model = Network()
    model.load_state_dict(initial.state())
    model.to(device="cuda")
    batch = inputs()
    run = compile(with_adamw(1e-2)(model), *batch, cuda_graph=wanted)
    losses = [run(*batch) for _ in range(steps)]
    state = {name: a.torch().clone() for name, a in model.state().items()}
    return run, [loss.item() for loss in losses], state


@pytest.mark.parametrize("dialects", DIALECTS, ids="+".join)
def test_training_is_the_same_bit_for_bit(dialects: tuple[str, ...]) -> None:
    """Random numbers, statistics and optimizer state included."""
    initial = Network()
    with only(*dialects, "cuda"):
        run, losses, state = trained(initial, None)
        _, expected_losses, expected = trained(initial, False)
    assert run.cuda_graph, run.cuda_graph
    assert any(region.graphs == 1 for region in run.cuda_graph.regions)
    assert losses == expected_losses and len(set(losses)) == len(losses)
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


def four_kernels(x: meta.ndarray) -> Any:
    """A program of kernels that are not fused."""
    with only("torch"):
        return compile(trace(chain), x, cuda_graph=True)


def test_results_stay() -> None:
    x = random(64, 64)
    run = four_kernels(x)
    found = []
    for _ in range(4):
        x = random(64, 64)
        found.append((run(x), chain(x)))
    for result, expected in found:
        check(result, expected, 1e-6, 1e-6)


def test_another_stream() -> None:
    run = four_kernels(random(64, 64))
    for _ in range(3):
        run(random(64, 64))
    stream, slow = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(slow):
        torch.cuda._sleep(500_000_000)
    with torch.cuda.stream(stream):
        x = random(64, 64)
        found, expected = run(x), chain(x)
    stream.synchronize()
    assert not slow.query(), "it does not wait for other streams"
    check(found, expected, 1e-6, 1e-6)
    slow.synchronize()


def test_threads_on_streams_of_their_own() -> None:
    weights = [meta.array(torch.randn(512, 512, device="cuda") / 20) for _ in range(6)]

    def body(x: Any) -> Any:
        for w in weights:
            x = op.tanh(op.matmul(x, w))
        return x

    x = torch.randn(512, 512, device="cuda")
    run = compile(trace(body), meta.array(x))
    for _ in range(3):
        run(meta.array(x))
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = torch.randn(512, 512, device="cuda") * number
        expected = run(meta.array(mine)).torch().clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(40):
                if not torch.equal(run(meta.array(mine)).torch(), expected):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_inside_of_another_graph() -> None:
    x = random(8, 8)
    run = four_kernels(x)
    for _ in range(3):
        run(x)
    gc.collect()  # which would end the recording if it freed another test's graph meanwhile
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(x)
    x.update(torch.zeros(8, 8))
    graph.replay()
    check(found, chain(x), 1e-6, 1e-6)


def test_a_kernel_that_waits_for_the_gpu() -> None:
    """It is found out, and runs between two graphs; memory and recording are in order behind it."""
    x = random(32, 32)
    with only("torch"):
        model = trace(lambda x: chain(chain(x) * reading(x)))
        run, plain = compile(model, x), compile(model, x, cuda_graph=False)
        for _ in range(4):
            x = random(32, 32)
            check(run(x), plain(x), 0, 0)
        assert len(run.cuda_graph.regions) == 2 and run.cuda_graph
        assert any("fixed_point_multiply: recording it failed" in r for r in run.cuda_graph.alone)
        with pytest.raises(CaptureError, match="fixed_point_multiply"):
            failing = compile(model, x, cuda_graph=True)
            failing(x), failing(x)
        test_results_stay()


def reading(x: Any) -> Any:
    """An operator whose kernel in torch makes a tensor of a number on the host."""
    whole = op.astype(op.multiply(x, 100.0), "int32")
    return op.astype(op.fixed_point_multiply(whole, 1 << 30, 1), "float32")


def test_a_loop() -> None:
    def body(state: Any) -> Any:
        i, y = state
        return i + 1, chain(y) + op.exp(y) * 0.01

    @trace
    def model(x: Any) -> Any:
        start = op.zeros((), "int64", "cuda")
        return meta.while_loop(lambda state: state[0] < 6, body, (start, x))[1]

    x = random(16)
    with only("torch"):
        run, plain = compile(model, x), compile(model, x, cuda_graph=False)
        for _ in range(3):
            x = random(16)
            check(run(x), plain(x), 0, 0)
    assert any(region.graphs for region in run.cuda_graph.regions), run.cuda_graph


def test_parameters_that_move_and_programs_that_are_saved(tmp_path: Path) -> None:
    model = Network()
    model.to(device="cuda")
    _, x, label = inputs()
    run = compile(model, x, label)
    run.save(tmp_path / "program")
    meta.random.seed(1)
    expected = [run(x, label).item() for _ in range(4)]
    loaded = meta.vm.load(tmp_path / "program", cuda_graph=True)
    meta.random.seed(1)
    assert [loaded(x, label).item() for _ in range(4)] == expected
    assert loaded.cuda_graph and loaded.memory().graphs > 0


def test_memory_does_not_grow_over_2000_steps() -> None:
    model = Network()
    model.to(device="cuda")
    batch = inputs()
    run = compile(with_adamw(1e-3)(model), *batch)
    for _ in range(5):
        run(*batch)
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(2000):
        loss = run(*batch)
    torch.cuda.synchronize()
    del loss
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


@pytest.fixture
def little_memory() -> Iterator[int]:
    """A limit of this process a little above what it has: the bytes that can be allocated, in
    pieces of what torch holds, and 256 MiB in one.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    left = 256 << 20
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + left) / total)
    yield left + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_out_of_memory(little_memory: int) -> None:
    """Of eager calls, of compiling and of running; the process goes on."""
    large = 128 << 20  # elements
    device = Device("cuda:0")
    # The share of the process is a float, whose product with the memory is rounded.
    assert 256 << 20 <= free_bytes(device) + 4 and free_bytes(device) <= little_memory
    whole = torch.empty(254 << 20, dtype=torch.uint8, device="cuda")
    assert free_bytes(device) <= little_memory - whole.numel()
    del whole
    with pytest.raises(OutOfMemory) as caught:
        op.full((large,), 1.0, "float32", "cuda")
    assert caught.value.planned == 4 * large
    assert caught.value.free is not None and 0 < caught.value.free <= little_memory
    scalar = on_gpu(torch.ones(1))[0]
    grown = trace(lambda x: op.tanh(op.broadcast_to(x, (large,))))
    with only("torch"):
        run = compile(grown, scalar)
        with pytest.raises(OutOfMemory, match="memory_budget"):
            run(scalar)
        type_ = meta.ir.parse_type(f"float32[{large}]")
        with pytest.raises(OutOfMemory, match="intermediate results"):
            compile(trace(lambda x: op.sum(op.tanh(x) * op.exp(x))), type_, device="cuda")
    x = random(64, 64)
    check(chain(x), compile(trace(chain), x)(x), 1e-6, 1e-6)
    assert op.full((1 << 20,), 1.0, "float32", "cuda").shape == (1 << 20,)
