"""`meta.measure` on a GPU: CUDA graphs, the cache, memory, and kernels that cannot be recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import Device
from meta.base.errors import MetaWarning
from meta.base.registry import OPERATORS
from meta.cost.store import clear_memory
from meta.dialect import HANDWRITTEN, REFERENCE
from meta.ir import TensorType, parse, text
from meta.passes import infer_type
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.channels_last_rewriter import ChannelsLastRewriter
from meta.vm.benchmark.interleave import GraphClock
from meta.vm.benchmark.measure import measure_together
from meta.vm.benchmark.workload import MOST_COPIES, copies_of
from meta.vm.graphs.capture import CudaRecorder
from tests.vm.fakes import Fakes

pytestmark = pytest.mark.cuda
HALF = TensorType((1024, 1024), "float16")
X = TensorType((512, 1024), "float32")


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    made = Fakes()
    yield made
    made.remove()


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "matmul": (meta.matmul, (HALF, HALF), {}),
    "softmax": (meta.softmax, (X,), {}),
    "layer_norm": (meta.layer_norm, (X, (1024,)), {}),
    "tanh": (meta.tanh, (X,), {}),
    "take": (meta.take, (X, TensorType((300,), "int64")), {"axis": 0}),
    "conv2d": (
        *(meta.conv2d, (TensorType((8, 64, 28, 28), "float16"),)),
        {"weight": TensorType((64, 64, 3, 3), "float16"), "padding": 1},
    ),
    "0-d": (meta.exp, (TensorType((), "float32"),), {}),
    "empty": (meta.exp, (TensorType((0, 3), "float32"),), {}),
    "written": (OPERATORS["adam"], (X, X, X, X, 1, 0.1), {}),
    "read on the host": (meta.nonzero, (TensorType((3, 5), "float32"),), {}),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("how", ["graph", "eager"])
def test_every_kind_of_operator_is_timed(name: str, how: str) -> None:
    op, args, kwargs = CALLS[name]
    costs = meta.measure(op, *args, device="cuda", how=how, iters=3, configs=2, **kwargs)
    accepted = [c for c in costs if not c.refused]
    assert accepted, costs
    assert not [c for c in costs if c.refused.startswith(("fails", "is wrong"))], costs
    for cost in accepted:
        assert cost.forward is not None and cost.forward.count == 3
        assert 0 < cost.forward.median < 1e5
        assert cost.host is not None and 0 < cost.host < 1e6


@pytest.mark.parametrize("name", ["matmul", "softmax", "conv2d"])
@pytest.mark.parametrize("how", ["graph", "eager"])
def test_gradients_are_timed(name: str, how: str) -> None:
    op, args, kwargs = CALLS[name]
    options = {"device": "cuda", "how": how, "iters": 3, "configs": 0, "backward": True}
    accepted = [c for c in meta.measure(op, *args, **options, **kwargs) if not c.refused]
    assert accepted and all(c.backward and c.backward.median > 0 for c in accepted)


def test_a_large_copy_takes_as_long_as_the_memory_says() -> None:
    """Between half of 5 TB/s and ten times as long: no cache holds it, no launch counts."""
    count = 1 << 26
    (cost,) = meta.measure(
        meta.copy, TensorType((count,), "float32"), device="cuda", dialect="torch", iters=5
    )
    assert cost.forward is not None
    bandwidth = 2 * 4 * count / (cost.forward.median * 1e-6)
    assert 0.5e12 < bandwidth < 6e12


def test_copies_are_larger_than_the_cache() -> None:
    device = Device("cuda")
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    assert copies_of(1 << 20, device, writes=False) * (1 << 20) >= min(2 * cache, MOST_COPIES << 20)
    assert copies_of(4 * cache, device, writes=False) == 1
    assert copies_of(64, device, writes=False) == MOST_COPIES


def test_a_small_kernel_is_shorter_in_a_graph_than_launched() -> None:
    small = TensorType((64,), "float32")
    times = {}
    for how in ("graph", "eager"):
        (cost,) = meta.measure(meta.tanh, small, device="cuda", dialect="torch", how=how, iters=20)
        assert cost.forward is not None
        times[how] = cost.forward.median
    assert times["graph"] < times["eager"]


def test_all_that_is_timed_of_a_small_kernel_is_in_graphs() -> None:
    """A clock goes on after its first graphs are gone, with those of the gradient and of dispatch's
    first glance at kernels.
    """
    small = TensorType((64,), "float32")
    times = {}
    for how in ("graph", "eager"):
        options = {"device": "cuda", "how": how, "iters": 20, "backward": True}
        (cost,) = meta.measure(meta.exp, small, dialect="torch", **options)
        assert cost.backward is not None
        times[how] = cost.backward.median
    assert times["graph"] < 0.6 * times["eager"]
    calls = [
        meta.tanh.call_values((TensorType((n,), "float32"),), Device("cuda")) for n in (64, 96)
    ]
    for _, costs in measure_together(calls, Device("cuda"), "graph"):
        assert all(c.forward.median < 4.0 for c in costs if c.forward is not None), costs


def test_a_recorder_outlives_its_graphs() -> None:
    recorder, x = CudaRecorder(Device("cuda")), torch.zeros(4, device="cuda")
    for _ in range(3):
        replay = recorder.record(lambda: x.add_(torch.ones_like(x)))
        replay()
        del replay
        gc.collect()
        torch.cuda.empty_cache()
    assert x.tolist() == [6.0] * 4 and len(recorder.pools) == 3


def test_what_cannot_be_recorded_is_launched_and_nothing_breaks(fakes: Fakes) -> None:
    def waits(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        float(y.sum())  # waits for the device, which no graph holds
        return y

    fakes.kernel(meta.tanh, "fake", HANDWRITTEN + 1, 0.0, waits, devices=("cuda",))
    with pytest.warns(MetaWarning, match="cannot be recorded in a CUDA graph.*not_capturable"):
        costs = meta.measure(meta.tanh, X, device="cuda", iters=3)
    found = {c.name: c for c in costs}
    assert found["fake"].forward is not None and not found["fake"].refused
    assert found["torch"].forward is not None
    with pytest.warns(MetaWarning, match="cannot be recorded"):
        replay = GraphClock(Device("cuda")).batch([lambda: torch.cuda.synchronize()])
    assert replay() > 0
    assert float(torch.ones(3, device="cuda").sum()) == 3.0


def test_a_wrong_kernel_is_left_out(fakes: Fakes) -> None:
    fakes.kernel(
        meta.tanh, "fake", REFERENCE, 0.0, lambda x: torch.tanh(x) * 1.01,
        devices=("cuda",),
    )  # fmt: skip
    found = {c.name: c for c in meta.measure(meta.tanh, X, device="cuda", iters=1)}
    assert "is wrong" in found["fake"].refused


@pytest.mark.parametrize("how", ["graph", "eager"])
@pytest.mark.parametrize("backward", [False, True])
def test_memory_returns_to_what_it_was(how: str, backward: bool) -> None:
    def run() -> int:
        options = {"device": "cuda", "how": how, "iters": 3, "configs": 1}
        meta.measure(meta.matmul, HALF, HALF, backward=backward, **options)
        meta.measure(meta.softmax, X, backward=backward, **options)
        meta.measure(OPERATORS["adam"], X, X, X, X, 1, 0.1, **options)
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = run()  # workspaces and caches of libraries
    assert run() == first


def test_nothing_is_measured_while_a_graph_is_recorded(
    tmp_path: Path, measured_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("META_TUNE", "cached")
    clear_memory()
    x = meta.ones((3, 77), device="cuda")
    meta.tanh(x)
    asked: list[Any] = []
    measured_by(lambda *what: asked.append(what) or [])
    graph = torch.cuda.CUDAGraph()
    with meta.cost.measured(), torch.cuda.graph(graph):
        y = meta.tanh(x)
    assert not asked
    graph.replay()
    assert float(y.torch()[0, 0]) == pytest.approx(0.76159, abs=1e-4)
    clear_memory()


IMAGES = """
func @main(%x: float32[4, 8, 24, 24], %v: float32[16, 8, 3, 3], %w: float32[16, 16, 3, 3], \
%dy: float32[4, 16, 24, 24]) {
  %a = conv2d(%x, %v, padding=1)
  %b = relu(%a)
  %c = conv2d(%b, %w, padding=1)
  %db = conv2d_dx(%w, None, %dy, shape=(4, 16, 24, 24), padding=1)
  %dw = conv2d_dw(%b, None, %dy, shape=(16, 16, 3, 3), padding=1)
  return (%c, %db, %dw)
}"""


@pytest.mark.parametrize("tries", [False, True], ids=["tuned", "channels last"])
def test_convolutions_of_float32_in_tf32(tries: bool) -> None:
    """In either layout, and in the one that measuring chooses."""
    module = infer_type(parse(IMAGES))
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(p.type.shape, generator=generator) for p in module.main.params]
    x, v, w, dy = (t.double() for t in given)
    w.requires_grad_()
    hidden = torch.relu(torch.conv2d(x, v, padding=1)).requires_grad_()
    result = torch.conv2d(hidden, w, padding=1)
    result.backward(dy)
    expected = result.detach(), hidden.grad, w.grad
    arrays = [meta.array(t, device="cuda") for t in given]
    with config.override(META_TF32=True):
        if tries:
            buffers = AliasSets(module.main, AliasSummaries(module))
            moved = ChannelsLastRewriter(
                module.main, buffers, Device("cuda"), tries=True
            ).rewritten()
            module = infer_type(module.with_functions({"main": moved}))
            assert text(module).count('out_layout="NHWC"') == 4
        found = meta.vm.compile(module, *arrays, tune=None if tries else 20.0)(*arrays)
    for one, wanted in zip(found, expected, strict=True):
        assert wanted is not None
        bound = 4e-3 * float(wanted.abs().max())  # 10 bits of each operand
        assert float((one.torch().cpu().double() - wanted).abs().max()) < bound
