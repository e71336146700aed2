"""Stochastic gradient descent with momentum: v = momentum * v + dx; x = x - learning_rate * v."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.grad.core import no_grad
from meta.model.gradient import value_and_grad
from meta.model.model import Model
from meta.model.trace import trace
from meta.runtime.ndarray import array, ndarray


def _zeros_like(x: ndarray) -> ndarray:
    return ndarray(torch.zeros_like(x.torch()))


class SGD:
    """SGD for eager loops: ``loss.backward(); optimizer.step(); optimizer.zero_grad()``.

    Parameters
    ----------
    params: arrays that require gradients, or a mapping of names to them (`Model.parameters`).
    learning_rate: may be assigned between steps.
    momentum: weight of the old velocity, in [0, 1).
    """

    def __init__(
        self,
        params: Iterable[ndarray] | Mapping[str, ndarray],
        learning_rate: float,
        momentum: float = 0.0,
    ) -> None:
        _check(learning_rate, momentum)
        self.params = list(params.values() if isinstance(params, Mapping) else params)
        self.learning_rate, self.momentum = learning_rate, momentum
        self.velocity = [_zeros_like(p) for p in self.params]

    def step(self) -> None:
        """Update every parameter that has a gradient, in place."""
        for x, v in zip(self.params, self.velocity, strict=True):
            if x.grad is not None:
                op.sgd(x, x.grad, v, self.learning_rate, self.momentum)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for x in self.params:
            x.grad = None


class WithSGD(Model):
    """A model together with its optimizer; see `with_sgd`."""

    def build(self, model: Model, learning_rate: float, momentum: float) -> None:
        """Wrap a model; one velocity per parameter, all zero."""
        self.model = model
        self.gradient = value_and_grad(model)
        params = model.parameters()
        device = next(iter(params.values())).device if params else "cpu"
        self.learning_rate = array(learning_rate, "float32", device=device)
        self.momentum = momentum
        self.velocity = {name: _zeros_like(p) for name, p in params.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step. Nothing is recorded: the gradients are used already."""
        with no_grad():
            return super().__call__(*args, **kwargs)

    @trace
    def forward(self, dy: Any, *inputs: Any) -> Any:
        """Run forward, backward and update; return the model's result."""
        y, gradients = self.gradient(dy, *inputs)
        params = self.model.parameters()
        for name, dx in gradients.items():
            op.sgd(params[name], dx, self.velocity[name], self.learning_rate, self.momentum)
        return y


def with_sgd(learning_rate: float = 0.1, momentum: float = 0.0) -> Callable[[Model], WithSGD]:
    """Return a function that turns a model into its training step.

    ``step = with_sgd(0.1, 0.9)(model)`` is called as ``step(dy, *inputs)``: forward, backward from
    ``dy`` (the gradient of the model's result) and the update of all parameters are one traced
    function; it returns the model's result. The learning rate is an array input:
    ``step.learning_rate.update(0.01)`` changes it without tracing or compiling anew.
    """
    _check(learning_rate, momentum)
    return lambda model: WithSGD(model, learning_rate, momentum)


def _check(learning_rate: float, momentum: float) -> None:
    if not learning_rate >= 0 or not 0 <= momentum < 1:
        raise ArgumentError(
            "SGD's parameters are out of range",
            expected="learning_rate >= 0 and 0 <= momentum < 1",
            found=f"learning_rate={learning_rate}, momentum={momentum}",
        )
