"""Activation layers: one operator on one array. Add one as a class with its operator."""

from __future__ import annotations

from typing import Any, ClassVar

from meta import op
from meta.model.init import parameter
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import Op
from meta.runtime.ndarray import array

__all__ = [
    "ELU", "GELU", "Hardsigmoid", "Hardswish", "LeakyReLU", "LogSoftmax", "Mish", "PReLU",
    "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh",
]  # fmt: skip


class Activation(Model):
    """Base of layers that apply ``operator`` to an array of any shape, with ``options`` that are
    set at construction.
    """

    operator: ClassVar[Op]
    options: tuple[Any, ...] = ()

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the activation; the result has x's shape and dtype."""
        return self.operator(x, *self.options)


class ReLU(Activation):
    """max(x, 0).

    >>> meta.model.ReLU()(meta.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    operator = op.relu


class ReLU6(Activation):
    """min(max(x, 0), 6).

    >>> meta.model.ReLU6()(meta.array([-1.0, 7.0])).tolist()
    [0.0, 6.0]
    """

    operator = op.relu6


class LeakyReLU(Activation):
    """x where x > 0, else negative_slope * x.

    >>> meta.model.LeakyReLU(0.5)(meta.array([-2.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    operator = op.leaky_relu

    def build(self, negative_slope: float = 0.01) -> None:
        """Set the slope."""
        self.options = (negative_slope,)


class PReLU(Model):
    """x where x > 0, else weight * x. ``weight``: (1,), or (num_parameters,) along axis 1.

    >>> meta.model.PReLU()(meta.array([-2.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    def build(self, num_parameters: int = 1, init: float = 0.25) -> None:
        """Make the weight."""
        self.weight = parameter(array([init] * num_parameters, "float32"))

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the activation."""
        return op.prelu(x, self.weight)


class ELU(Activation):
    """x where x > 0, else alpha * (exp(x) - 1).

    >>> meta.model.ELU()(meta.array([0.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    operator = op.elu

    def build(self, alpha: float = 1.0) -> None:
        """Set alpha."""
        self.options = (alpha,)


class GELU(Activation):
    """x * Phi(x); with ``approximate="tanh"`` the formula with tanh instead of the exact normal
    distribution function.

    >>> round(meta.model.GELU()(meta.array(1.0)).item(), 4)
    0.8413
    """

    operator = op.gelu

    def build(self, approximate: str = "none") -> None:
        """Choose the form, "none" or "tanh"."""
        self.options = (approximate,)


class SiLU(Activation):
    """x * sigmoid(x), also called swish.

    >>> meta.model.SiLU()(meta.zeros(2)).tolist()
    [0.0, 0.0]
    """

    operator = op.silu


class Mish(Activation):
    """x * tanh(log(1 + exp(x))).

    >>> meta.model.Mish()(meta.zeros(2)).tolist()
    [0.0, 0.0]
    """

    operator = op.mish


class Sigmoid(Activation):
    """1 / (1 + exp(-x)).

    >>> meta.model.Sigmoid()(meta.zeros(2)).tolist()
    [0.5, 0.5]
    """

    operator = op.sigmoid


class Tanh(Activation):
    """The hyperbolic tangent.

    >>> meta.model.Tanh()(meta.zeros(2)).tolist()
    [0.0, 0.0]
    """

    operator = op.tanh


class Softplus(Activation):
    """log(1 + exp(beta * x)) / beta; x where beta * x > threshold.

    >>> round(meta.model.Softplus()(meta.zeros(1)).item(), 3)
    0.693
    """

    operator = op.softplus

    def build(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        """Set both numbers."""
        self.options = (beta, threshold)


class Hardswish(Activation):
    """x * min(max(x + 3, 0), 6) / 6.

    >>> meta.model.Hardswish()(meta.array([0.0, 4.0])).tolist()
    [0.0, 4.0]
    """

    operator = op.hardswish


class Hardsigmoid(Activation):
    """min(max(x + 3, 0), 6) / 6.

    >>> meta.model.Hardsigmoid()(meta.array([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    operator = op.hardsigmoid


class Softmax(Activation):
    """exp(x) / sum(exp(x)) along the axis ``dim``.

    >>> meta.model.Softmax(-1)(meta.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """

    operator = op.softmax

    def build(self, dim: int) -> None:
        """Set the axis."""
        self.options = (dim,)


class LogSoftmax(Activation):
    """The logarithm of `Softmax` along the axis ``dim``.

    >>> meta.model.LogSoftmax(-1)(meta.zeros((2, 1))).tolist()
    [[0.0], [0.0]]
    """

    operator = op.log_softmax

    def build(self, dim: int) -> None:
        """Set the axis."""
        self.options = (dim,)
