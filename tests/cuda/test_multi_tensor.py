"""Updates of all parameters on CUDA: few launches, the CPU's numbers, CUDA graphs and streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op, optim
from meta.dialect import only
from meta.testing import check

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
]

# The parameters of BERT-base with its pooler: 199 tensors, 109 million elements.
LAYER = [(768, 768), (768,)] * 4 + [(3072, 768), (3072,), (768, 3072), (768,)] + [(768,)] * 4
BERT = [(30522, 768), (512, 768), (2, 768), (768,), (768,), *LAYER * 12, (768, 768), (768,)]
UPDATES = {
    "sgd": 1,
    "adam": 1,
    "adamw": 1,
    "lamb": 2,
    "lans": 3,
    "rmsprop": 1,
    "adagrad": 1,
    "lion": 1,
}


def lists(shapes: list[tuple[int, ...]], count: int, device: str) -> list[list[meta.ndarray]]:
    generator = torch.Generator().manual_seed(0)
    made = [[torch.randn(s, generator=generator) for s in shapes] for _ in range(count)]
    return [[meta.array(t.abs() if i == 3 else t, device=device) for t in some]
            for i, some in enumerate(made)]  # fmt: skip


def update(
    name: str, tensors: list[list[meta.ndarray]], rate: float | meta.ndarray = 0.1, **options: Any
) -> None:
    x, dx, m, v = tensors
    given: dict[str, tuple[Any, ...]] = {
        "sgd": (m, rate, 0.9),
        "rmsprop": (v, (), m, rate),
        "adagrad": (v, 3, rate),
        "lion": (m, rate),
    }
    operator = getattr(op, f"multi_tensor_{name}")
    operator(x, dx, *given.get(name, (m, v, 3, rate)), **options)


def launches(function: Any) -> int:
    """Return how many kernels a call launches, once everything is compiled."""
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    events = profile.events()
    return sum(
        e.device_type == torch.autograd.DeviceType.CUDA and not e.name.startswith("Mem")
        for e in events
    )


@pytest.mark.parametrize("name", UPDATES)
def test_few_launches_update_bert(name: str) -> None:
    tensors = lists(BERT, 4, "cuda")
    assert len(BERT) == 199
    assert launches(lambda: update(name, tensors)) == UPDATES[name]
    assert "cuda " in str(meta.explain(op.multi_tensor_norm, tensors[0]))


def test_a_whole_step_with_groups_takes_at_most_three_launches() -> None:
    arrays = {f"p{i}": tensors for i, tensors in enumerate(lists(BERT, 1, "cuda")[0])}
    for array in arrays.values():
        array.requires_grad = True
    groups = [{"params": ["p3", "p4", "p?0"], "weight_decay": 0.0}]
    optimizer = optim.AdamW(arrays, 1e-3, groups=groups)
    for array, gradient in zip(arrays.values(), lists(BERT, 1, "cuda")[0], strict=True):
        array.grad = gradient
    optimizer.step()
    assert launches(optimizer.step) <= 3


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("count", [3, 90, 1500])
def test_the_numbers_are_the_cpu_s(name: str, count: int) -> None:
    shapes = [(1 + i % 7, 5 + i % 40) for i in range(count)]
    shapes[0] = (300, 333)
    there, here = lists(shapes, 4, "cuda"), lists(shapes, 4, "cpu")
    factor = 0.5
    with only("cuda", "torch"):
        update(name, there, factor=meta.array(factor, device="cuda"), clip_value=1.5)
    update(name, here, factor=factor, clip_value=1.5)
    for some, expected in zip(there, here, strict=True):
        for found, other in zip(some, expected, strict=True):
            check(found.to(device="cpu"), other, 2e-5, 2e-5)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masters_and_copies(name: str, dtype: str) -> None:
    shapes = [(3, 40), (), (7, 1000), (0, 3)]
    x, _, m, v = lists(shapes, 4, "cuda")
    dx = [meta.astype(t, dtype) for t in lists(shapes, 2, "cuda")[1]]
    copies = [meta.zeros(s, dtype, device="cuda") for s in shapes]
    update(name, [x, dx, m, v], copies=copies)
    for master, copy in zip(x, copies, strict=True):
        assert torch.equal(copy.torch(), master.torch().to(copy.torch().dtype))


def test_views_at_any_address() -> None:
    base = torch.arange(1001.0, device="cuda")
    x, y = base[1:].clone(), torch.zeros(1003, device="cuda")[3:]
    op.multi_tensor_axpby([meta.runtime.ndarray.ndarray(base[1:])],
                          [meta.runtime.ndarray.ndarray(y)], 2.0, 1.0)  # fmt: skip
    torch.testing.assert_close(y, 2 * x)


def test_skip_writes_nothing() -> None:
    tensors = lists([(5, 6), (7,)], 4, "cuda")
    before = [[t.torch().clone() for t in some] for some in tensors]
    for name in UPDATES:
        update(name, tensors, skip=meta.array(True, device="cuda"))
    assert all(
        torch.equal(t.torch(), old)
        for some, olds in zip(tensors, before, strict=True)
        for t, old in zip(some, olds, strict=True)
    )


def test_the_norm() -> None:
    tensors = lists(BERT[:30], 1, "cuda")[0]
    expected = torch.cat([t.torch().flatten().double() for t in tensors]).norm()
    check(op.multi_tensor_norm(tensors).to(device="cpu"), expected.cpu(), 1e-6, 0)
    large = meta.array([3e30, 4e30], device="cuda")
    assert op.multi_tensor_norm([large]).item() == pytest.approx(5e30)
    assert not torch.isfinite(
        op.multi_tensor_norm([meta.array([float("inf")], device="cuda")]).torch()
    )


@pytest.mark.parametrize("name", UPDATES)
def test_a_cuda_graph_replays_the_update(name: str) -> None:
    tensors, others = lists(BERT[5:40], 4, "cuda"), lists(BERT[5:40], 4, "cuda")
    rates = [meta.array(0.1, device="cuda") for _ in range(2)]
    for _ in range(3):
        update(name, others, rates[1])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        update(name, tensors, rates[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update(name, tensors, rates[0])
    rates[0].update(0.05)  # read by the kernel, so the graph sees it
    rates[1].update(0.05)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    fresh = lists(BERT[5:40], 4, "cuda")
    rate = meta.array(0.1, device="cuda")
    for i in range(3):
        rate.update(0.1 if i == 0 else 0.05)
        update(name, fresh, rate)
    for some, expected in zip(tensors, fresh, strict=True):
        for found, other in zip(some, expected, strict=True):
            torch.testing.assert_close(found.torch(), other.torch())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_is_the_cpu_s(compiled: bool) -> None:
    class Layer(meta.Model):
        def build(self) -> None:
            generator = torch.Generator().manual_seed(0)
            self.weight = meta.array(torch.randn(8, 3, generator=generator))
            self.bias = meta.array(torch.zeros(3))
            self.weight.requires_grad = self.bias.requires_grad = True

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            y = op.matmul(x, self.weight) + self.bias
            return op.mean(y * y)

    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    states = []
    for device in ("cpu", "cuda"):
        scale = optim.DynamicLossScale(growth_interval=2)
        options: dict[str, Any] = {"clip_norm": 0.1, "loss_scale": scale}
        maker = optim.with_adamw(0.1, accumulate=2, ema=0.9, **options)
        step = maker(Layer().to(device=device))
        arguments = meta.array(1.0, device=device), meta.array(x, device=device)
        run = meta.vm.compile(step, *arguments) if compiled else step
        for _ in range(8):
            run(*arguments)
        states.append({n: a.to(device="cpu") for n, a in step.state().items()})
    for name, expected in states[0].items():
        check(states[1][name], expected, 1e-4, 1e-5)
