"""What is compared: calls without arguments that run a network for inference, or train a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import meta
from meta.optim import with_sgd
from models.network import Network, WithLoss, state_of

MODES = ("inference", "training")
NAMES = ("meta", "eager", "compile")
RATE, MOMENTUM = 0.01, 0.9


class Contender:
    """A network under one library, ready to be compiled.

    ``call()`` runs it once: the scores of a batch, or the loss of a training step, as a tensor.
    ``state()`` is a copy of what training changes, under the names of `meta`.
    """

    def __init__(self, network: Network, name: str, mode: str) -> None:
        ours, theirs = network.pair()
        x, labels = network.batch()
        self.name, self.training = name, mode == "training"
        if name == "meta":
            self.state = lambda: {n: a.torch().detach().clone() for n, a in ours.state().items()}
            self._compiled = _of_meta(ours, x, labels, self.training)
        else:
            self.state = lambda: state_of(theirs)
            make = _training_of_torch if self.training else _inference_of_torch
            self._compiled = lambda: make(theirs, x, labels, name == "compile")

    def compiled(self) -> Callable[[], torch.Tensor]:
        """Return what runs it. torch.compile does nothing before the first call of that."""
        return self._compiled()


def program(
    model: meta.Model, x: torch.Tensor, labels: torch.Tensor, training: bool
) -> tuple[Any, list[meta.ndarray]]:
    """Return what `meta.vm.compile` gets for inference or a training step, and its inputs."""
    if training:
        step = with_sgd(RATE, MOMENTUM)(WithLoss(model))
        return step, [meta.array(1.0), meta.array(x), meta.array(labels)]
    return model.eval(), [meta.array(x)]


def _of_meta(
    model: meta.Model, x: torch.Tensor, labels: torch.Tensor, training: bool
) -> Callable[[], Callable[[], Any]]:
    step, inputs = program(model, x, labels, training)

    def compiled() -> Callable[[], Any]:
        executable = meta.vm.compile(step, *inputs)

        def call() -> Any:
            return executable(*inputs).torch()

        return call

    return compiled


def _inference_of_torch(
    model: torch.nn.Module, x: torch.Tensor, _: torch.Tensor, compiler: bool
) -> Callable[[], Any]:
    run = torch.compile(model.eval()) if compiler else model.eval()

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return run(x)

    return call


def _training_of_torch(
    model: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor, compiler: bool
) -> Callable[[], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)

    def loss_of(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), labels)

    loss, update = loss_of, optimizer.step
    if compiler:
        loss, update = torch.compile(loss_of), torch.compile(optimizer.step)

    def call() -> torch.Tensor:
        optimizer.zero_grad()
        result = loss(x, labels)
        result.backward()
        update()
        return result.detach()

    return call
