"""Whole networks agree with torch: loss, every gradient, running statistics, training steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import meta
from meta.model import Model
from meta.model.zoo import LeNet
from meta.optim import SGD, with_sgd
from meta.testing import check
from tests.model import networks

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@dataclass
class Pair:
    """A network of ours with a loss, the same of torch's, and inputs."""

    ours: Model
    theirs: torch.nn.Module
    x: torch.Tensor
    labels: torch.Tensor
    names: dict[str, str] = field(default_factory=dict)

    def name_of(self, name: str) -> str:
        """Return torch's name of a parameter or running statistic of ours."""
        for ours, theirs in self.names.items():
            if name.startswith(ours):
                name = name.replace(ours, theirs, 1)
        return name

    def inputs(self) -> tuple[meta.ndarray, meta.ndarray]:
        return meta.array(self.x), meta.array(self.labels)

    def expected(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return torch's loss and gradients."""
        self.theirs.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.theirs(self.x), self.labels)
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in self.theirs.named_parameters()}

    def check_gradients(self, found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
        by_name = {self.name_of(n.removeprefix("network.")): g for n, g in found.items()}
        assert by_name.keys() == expected.keys()
        for name, gradient in expected.items():
            check(by_name[name], gradient, **TOLERANCE, what=name)

    def check_state(self) -> None:
        """All parameters and running statistics agree."""
        theirs = self.theirs.state_dict()
        for name, array in self.ours.network.state().items():
            check(
                array.torch(),
                theirs[self.name_of(name)],
                **TOLERANCE,
                what=name,
            )


def make(kind: str) -> Pair:
    torch.manual_seed(0)
    labels = torch.tensor([3, 9, 0, 1])
    if kind == "lenet":
        ours, theirs, shape = LeNet(), networks.TorchLeNet(), (4, 1, 28, 28)
    elif kind == "resnet":
        ours, theirs = networks.BasicBlock(4, 8), networks.TorchBasicBlock(4, 8)
        shape = (4, 4, 9, 9)
    elif kind == "lstm":
        ours, theirs, shape = networks.LSTM(6, 8), networks.TorchLSTM(6, 8), (5, 4, 6)
    else:
        ours, theirs, shape = networks.Encoder(12, 3), networks.TorchEncoder(12, 3), (4, 7, 12)
    names = networks.ENCODER_NAMES if kind == "transformer" else {}
    pair = Pair(networks.WithLoss(ours), theirs, torch.randn(shape), labels, names)
    state = theirs.state_dict()
    # Values that are neither 0 nor 1, so that nothing is right by accident.
    for value in state.values():
        if value.is_floating_point():
            value.add_(torch.rand_like(value) * 0.1)
    ours.load_state_dict({n: state[pair.name_of(n)] for n in ours.state()})
    return pair


KINDS = ["lenet", "resnet", "lstm", "transformer"]


@pytest.mark.parametrize("kind", KINDS)
def test_interpreter(kind: str) -> None:
    pair = make(kind)
    expected_loss, expected = pair.expected()
    loss = pair.ours(*pair.inputs())
    check(loss.torch(), expected_loss, **TOLERANCE)
    loss.backward()
    pair.check_gradients({n: p.grad for n, p in pair.ours.named_parameters()}, expected)
    pair.check_state()


@pytest.mark.parametrize("kind", KINDS)
def test_vm(kind: str) -> None:
    pair = make(kind)
    inputs = (meta.array(1.0), *pair.inputs())
    run = meta.vm.compile(meta.model.value_and_grad(pair.ours), *inputs)
    for _ in range(2):  # running statistics go on, and memory is used again
        expected_loss, expected = pair.expected()
        loss, gradients = run(*inputs)
        check(loss.torch(), expected_loss, **TOLERANCE)
        pair.check_gradients(gradients, expected)
        pair.check_state()


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
def test_with_generated_kernels(kind: str) -> None:
    with meta.dialect.only("tvm", "torch"):
        test_interpreter(kind)
        test_vm(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_inference(kind: str) -> None:
    pair = make(kind)
    pair.ours.eval()
    expected = torch.nn.functional.cross_entropy(pair.theirs.eval()(pair.x), pair.labels).detach()
    inputs = pair.inputs()
    check(pair.ours(*inputs).torch(), expected, **TOLERANCE)
    check(meta.vm.compile(pair.ours, *inputs)(*inputs).torch(), expected, **TOLERANCE)
    pair.check_state()


def torch_steps(pair: Pair, steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(pair.theirs.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        losses.append(pair.expected()[0])
        optimizer.step()
    return losses


@pytest.mark.parametrize("executor", ["eager", "interpreter", "vm"])
@pytest.mark.parametrize("kind", ["lenet", "resnet"])
def test_training(kind: str, executor: str) -> None:
    pair = make(kind)
    inputs = pair.inputs()
    expected = torch_steps(pair, 3)
    losses = []
    if executor == "eager":
        optimizer = SGD(pair.ours.parameters(), 0.05, momentum=0.9)
        for _ in range(3):
            loss = pair.ours(*inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
    else:
        step: Any = with_sgd(0.05, momentum=0.9)(pair.ours)
        if executor == "vm":
            step = meta.vm.compile(step, meta.array(1.0), *inputs)
        losses = [step(meta.array(1.0), *inputs) for _ in range(3)]
    for found, wanted in zip(losses, expected, strict=True):
        check(found.torch(), wanted, **TOLERANCE)
    pair.check_state()


@pytest.mark.parametrize("executor", ["interpreter", "vm"])
def test_the_learning_rate_changes_without_a_new_trace(executor: str) -> None:
    model = networks.WithLoss(networks.MLP())
    step = with_sgd(0.5)(model)
    args = meta.array(1.0), meta.random.normal((4, 5)), meta.array([1, 2, 3, 4])
    run: Any = meta.vm.compile(step, *args) if executor == "vm" else step
    run(*args)
    before = {n: p.numpy() for n, p in model.named_parameters()}
    step.lr.update(0.0)
    run(*args)
    assert all((p.numpy() == before[n]).all() for n, p in model.named_parameters())
    assert len(step.forward.programs) == 1


def test_a_frozen_parameter_has_no_gradient_and_stays() -> None:
    model = networks.WithLoss(networks.MLP())
    x, labels = meta.random.normal((4, 5)), meta.array([1, 2, 3, 4])
    both = meta.model.value_and_grad(model)
    assert len(both(meta.array(1.0), x, labels)[1]) == 4
    frozen = dict(model.network.layers.named_parameters())["0.weight"]
    frozen.requires_grad = False
    assert set(both(meta.array(1.0), x, labels)[1]) == {
        "network.layers.0.bias", "network.layers.2.weight", "network.layers.2.bias",
    }  # fmt: skip
    model(x, labels).backward()
    assert frozen.grad is None
