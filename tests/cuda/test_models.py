"""Whole models on CUDA: training as on the CPU, eager gradients, random bits, streams, graphs,
devices.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import DeviceError
from meta.dialect import only
from meta.model import BatchNorm, Conv2d, Linear, Model, trace
from meta.optim import with_sgd
from meta.testing.compare import check
from meta.vm import compile

pytestmark = pytest.mark.cuda
DIALECTS = [("tvm",), ("torch",), ("tvm", "torch")]


class Network(Model):
    """Convolution, batch normalisation, a linear layer, a loss."""

    def build(self) -> None:
        self.conv = Conv2d(3, 8, 3, padding=1)
        self.norm = BatchNorm(8)
        self.fc = Linear(8 * 4 * 4, 10)

    @trace
    def forward(self, x: Any, label: Any) -> Any:
        y = op.max_pool2d(op.relu(self.norm(self.conv(x))), 2, 2)
        return op.cross_entropy(self.fc(op.batch_flatten(y)), label)


def _inputs(device: str) -> list[meta.ndarray]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 3, 8, 8, generator=generator)
    label = torch.randint(0, 10, (6,), generator=generator)
    return [meta.array(torch.ones(()), device=device), *_on(device, x, label)]


def _on(device: str, *tensors: torch.Tensor) -> list[meta.ndarray]:
    return [meta.array(t, device=device) for t in tensors]


def _state(model: Model) -> dict[str, torch.Tensor]:
    return {name: value.torch().detach().cpu().clone() for name, value in model.state().items()}


def _trained(initial: Model, device: str, compiled: bool) -> tuple[list[Any], dict[str, Any]]:
    """Losses of three steps and the state after them."""
    model = Network()
    model.load_state_dict(initial.state())
    model.to(device=device)
    step = with_sgd(0.1, 0.9)(model)
    inputs = _inputs(device)
    run = compile(step, *inputs, device=device) if compiled else step
    losses = [run(*inputs).torch().cpu().clone() for _ in range(3)]
    return losses, _state(model)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreter", "vm"])
@pytest.mark.parametrize("dialects", DIALECTS, ids="+".join)
def test_training_is_as_on_the_cpu(dialects: tuple[str, ...], compiled: bool) -> None:
    initial = Network()
    expected_losses, expected = _trained(initial, "cpu", compiled)
    assert expected_losses[0] > expected_losses[2], "it learns"
    with only(*dialects, "cuda"):  # TVM leaves it the updates of lists of tensors
        losses, found = _trained(initial, "cuda", compiled)
    check(losses, expected_losses, 1e-4, 1e-4, what="losses")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        check(found[name], value, 1e-4, 1e-4, what=name)


def test_eager_backward() -> None:
    """An untraced loop records a tape; its gradients are those of the CPU."""
    gradients: dict[str, list[torch.Tensor]] = {}
    generator = torch.Generator().manual_seed(5)
    w, x = torch.randn(7, 4, generator=generator), torch.randn(5, 4, generator=generator)
    label = torch.tensor([0, 3, 6, 2, 2])
    for device in ("cpu", "cuda"):
        weight, data, truth = _on(device, w, x, label)
        weight.requires_grad = data.requires_grad = True
        loss = op.cross_entropy(op.layer_norm.plain(op.dense(data, weight)), truth)
        loss.backward()
        assert str(loss.device).startswith(device)
        gradients[device] = [loss.torch().detach().cpu()] + [
            a.grad.torch().cpu() for a in (weight, data)
        ]
    check(gradients["cuda"], gradients["cpu"], 1e-4, 1e-5, what="loss and gradients")


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_dropout_draws_what_the_cpu_draws(dialect: str) -> None:
    masks = []
    for device in ("cpu", "cuda"):
        meta.random.seed(11)
        (x,) = _on(device, torch.ones(33, 65))
        with only(dialect):
            y, mask, _ = op.dropout_train(x, 0.4)
        assert torch.equal(y.torch().cpu() != 0, mask.torch().cpu())
        masks.append(mask.torch().cpu())
    assert torch.equal(*masks) and 0 < masks[0].float().mean() < 1


def test_another_stream() -> None:
    """Kernels wait for the work of the stream they are called under, and for no other."""
    label, x = _on("cuda", torch.tensor([1, 0, 2]), torch.zeros(3, 4))
    with only("tvm"):
        expected = op.cross_entropy(x, label).torch().item()
        slow, stream = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(slow):
            torch.cuda._sleep(1_000_000_000)
            x.torch().fill_(float("nan"))
            late = op.cross_entropy(x, label)
        with torch.cuda.stream(stream):
            own = torch.zeros(3, 4, device="cuda")
            result = op.cross_entropy(own, label)
        stream.synchronize()
        assert not slow.query(), "the first stream is still busy"
        assert result.torch().item() == pytest.approx(expected)
        slow.synchronize()
        assert late.torch().isnan()


def test_streams_share_no_workspace() -> None:
    """Calls of one thread under two streams at once do not use one intermediate array."""
    generator = torch.Generator().manual_seed(7)
    xs = [torch.randn(2000, 3000, generator=generator).cuda() for _ in range(2)]
    label = torch.randint(0, 3000, (2000,), generator=generator).cuda()
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    with only("tvm"):
        found: list[list[Any]] = [[], []]
        for _ in range(20):
            for x, stream, results in zip(xs, streams, found, strict=True):
                with torch.cuda.stream(stream):
                    results.append(op.cross_entropy(x, label))
    torch.cuda.synchronize()
    for x, results in zip(xs, found, strict=True):
        expected = torch.nn.functional.cross_entropy(x, label)
        for result in results:
            check(result, expected, 1e-4, 1e-4)


def test_a_graph_replays_functions_of_several_kernels() -> None:
    """The intermediate arrays of a captured call belong to the graph."""
    x = torch.randn(40, 50, device="cuda")
    label = torch.arange(40, device="cuda")
    with only("tvm"):
        op.cross_entropy(x, label)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = op.cross_entropy(x, label)
        big = torch.randn(4000, 5000, device="cuda")
        op.cross_entropy(big, torch.zeros(4000, dtype=torch.int64, device="cuda"))
    x.normal_()
    graph.replay()
    check(captured, torch.nn.functional.cross_entropy(x, label), 1e-4, 1e-5)


def test_mixed_devices_are_an_error() -> None:
    (a,), (b,) = _on("cpu", torch.ones(3)), _on("cuda", torch.ones(3))
    with pytest.raises(DeviceError):
        op.add(a, b)
