"""The algorithms whose step is not a formula of elements: composed of operators, one parameter at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any, ClassVar

from meta import op
from meta.optim.data_parallel import ParameterShard, Step, apply_sharded_steps
from meta.optim.optimizer import Optimizer, ParameterBatch
from meta.optim.options import require_range
from meta.optim.step import step_maker
from meta.runtime.ndarray import ndarray

__all__ = ["Adafactor", "Muon", "with_adafactor", "with_muon"]

Shape = tuple[int, ...]
SMALLEST = 2.0**-126
"""The smallest normal float32: what keeps a division by zero away is at least this."""


class Composed(Optimizer):
    """Base class of algorithms that are composed of operators. A subclass has `new_values`, a
    generator, and its state is ``own_state_names``; gradients, masters, groups, loss scale and the
    writing are those of `Optimizer`, sums over parameters of which ranks have parts those of
    `meta.optim.data_parallel`.
    """

    def apply(
        self,
        call: ParameterBatch,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        further: Mapping[str, Any],
    ) -> None:
        """Update the parameters of a call; see `Optimizer.apply`."""
        apply_sharded_steps(self, call, params, gradients, further)


class Adafactor(Composed):
    """Adafactor, as torch.optim.Adafactor (Shazeer and Stern, arXiv:1804.04235, algorithms 4 and
    5): second moments of matrices are kept as means of rows and of columns, so that the state is
    small. See `Optimizer` for the shared arguments. The state is ``rows`` and ``columns`` of a
    parameter with two axes or more (the last two), ``v`` of any other, zeros at first.

    At step t, counted from 1, ``beta2 = 1 - t**-beta2_decay``; a step has the length
    ``max(eps2, rms(x)) * min(lr, 1 / sqrt(t))``.

    Parameters
    ----------
    beta2_decay: how fast the running means slow down; torch's with the opposite sign.
    eps1: bounds the root of a second moment from below. eps2: least length of a parameter in the
    length of its step. d: a step whose root mean square is above it is scaled down to it, at least
    1. weight_decay: parameters decay by lr * weight_decay at each step.

    >>> net = meta.model.Linear(3, 2)
    >>> optimizer = meta.optim.Adafactor(net.named_parameters(), lr=0.1)
    >>> optimizer.rows["weight"].shape, optimizer.columns["weight"].shape, optimizer.v["bias"].shape
    ((2, 1), (1, 3), (2,))
    """

    own_state_names = ("rows", "columns", "v")
    whole_names = ("rows", "columns")
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "beta2_decay": 0.8,
        "eps1": 2.0**-23,
        "eps2": 1e-3,
        "d": 1.0,
        "weight_decay": 0.0,
    }

    @classmethod
    def validate(cls, lr: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options of another kind, or out of their range."""
        super().validate(lr, options)
        require_range(cls.__name__, "d", options["d"], options["d"] >= 1, ">= 1 and finite")

    @classmethod
    def state_shapes(cls, shape: Shape, options: Mapping[str, Any]) -> dict[str, Shape]:
        """Return the shapes of what is kept of a parameter of a shape."""
        if len(shape) < 2:
            return {"v": shape}
        return {"rows": (*shape[:-1], 1), "columns": (*shape[:-2], 1, shape[-1])}

    @classmethod
    def of_matrices(cls, shape: Shape, options: Mapping[str, Any]) -> bool:
        """Whether a parameter has two axes or more."""
        return len(shape) > 1

    def new_values(
        self,
        x: Any,
        g: Any,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        rate: Any,
        decay: float,
        held: ParameterShard,
    ) -> Step:
        """Make the step of a parameter, which returns its new values and those of its means."""
        step = op.astype(self.step_count, x.dtype)
        fresh = op.pow(step, -options["beta2_decay"])
        square = g * g
        if "v" in state:
            new = {"v": _interpolate(state["v"], square, fresh)}
            v = new["v"]
        else:
            square = held.spread(square)
            along = {"rows": -1, "columns": -2}
            sums = yield [op.sum(square, axis=a, keepdims=True) for a in along.values()]
            new = {}
            for (kind, axis), total in zip(along.items(), sums, strict=True):
                mean = total / max(1, square.shape[axis])
                new[kind] = _interpolate(state[kind], mean, fresh)
            mean = op.mean(new["rows"], axis=-2, keepdims=True)
            v = new["rows"] * new["columns"] / op.maximum(mean, max(options["eps1"], SMALLEST))
            v = held.part(v)
        u = g * op.rsqrt(op.maximum(v, max(options["eps1"] ** 2, SMALLEST)))
        squares = yield [op.sum(x * x), op.sum(u * u)]
        rms_of_x, rms_of_u = (op.sqrt(square / held.count) for square in squares)
        length = op.maximum(rms_of_x, options["eps2"]) * op.minimum(rate, op.rsqrt(step))
        length = length / op.maximum(rms_of_u / options["d"], 1.0)
        return x * (1.0 - rate * decay) - length * u, new


def _interpolate(old: Any, new: Any, share: Any) -> Any:
    return old + share * (new - old)


QUINTIC = 3.4445, -4.7750, 2.0315
"""The coefficients of Muon's Newton-Schulz iteration: they maximize the slope at zero."""


class Muon(Composed):
    """Muon for matrices (Jordan et al., "Muon: an optimizer for hidden layers in neural networks",
    2024), as torch.optim.Muon, and AdamW for all else. The step along a matrix is its momentum made
    about orthogonal. See `Optimizer` for the shared arguments. The state is a ``velocity`` per
    matrix, ``m`` and ``v`` of other parameters, zeros at first.

    A parameter with more than two axes, such as the weight of a convolution, counts as a matrix of
    its first axis and all others. Embeddings and the last layer are better left to AdamW:
    ``groups=[{"params": ["embedding.*", "head.*"], "orthogonal": False}]``. The iteration is
    computed in float32 (torch's in bfloat16), in float64 for such parameters.

    Parameters
    ----------
    weight_decay: parameters decay by lr * weight_decay at each step.
    momentum: weight of the old velocity, in [0, 1). nesterov: look ahead along the velocity.
    eps: keeps a division by zero away. ns_steps: the number of Newton-Schulz iterations.
    match_rms_adamw: multiply the learning rate of a matrix of m rows and n columns by
    ``0.2 * sqrt(max(m, n))``, so that a learning rate for AdamW fits (arXiv:2502.16982); otherwise
    by ``sqrt(max(1, m / n))``.
    orthogonal: whether matrices have Muon's step; if not, AdamW's. betas: of AdamW.

    >>> step = meta.optim.with_muon(lr=0.02)(meta.model.Linear(3, 2, bias=False))
    >>> step(meta.ones((4, 2)), meta.ones((4, 3))).shape
    (4, 2)
    """

    operator = op.multi_tensor_adamw
    state_names = ("m", "v")
    own_state_names = ("velocity",)
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-3,
        "weight_decay": 0.1,
        "momentum": 0.95,
        "nesterov": True,
        "eps": 1e-7,
        "ns_steps": 5,
        "match_rms_adamw": False,
        "orthogonal": True,
        "betas": (0.9, 0.95),
    }
    shares = ("momentum", "betas")
    velocity: dict[str, ndarray]

    @classmethod
    def validate(cls, lr: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options of another kind, or out of their range."""
        super().validate(lr, options)
        steps = options["ns_steps"]
        fits = isinstance(steps, int) and 1 <= steps < 100
        require_range(cls.__name__, "ns_steps", steps, fits, "an int from 1 to 99")

    @classmethod
    def state_shapes(cls, shape: Shape, options: Mapping[str, Any]) -> dict[str, Shape]:
        """Return the shapes of what is kept of a parameter of a shape."""
        if cls.of_matrices(shape, options):
            return {"velocity": shape}
        return {"m": shape, "v": shape}

    @classmethod
    def of_matrices(cls, shape: Shape, options: Mapping[str, Any]) -> bool:
        """Whether a parameter has Muon's step."""
        return len(shape) > 1 and bool(options["orthogonal"])

    def apply(
        self,
        call: ParameterBatch,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        further: Mapping[str, Any],
    ) -> None:
        """Update the parameters of a call; see `Optimizer.apply`."""
        matrices, others = call.only(self.velocity), call.only(self.m)
        if matrices.names:
            super().apply(matrices, params, gradients, further)
        if others.names:
            Optimizer.apply(self, others, params, gradients, further)

    def new_values(
        self,
        x: Any,
        g: Any,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        rate: Any,
        decay: float,
        held: ParameterShard,
    ) -> Step:
        """Make the step of a matrix, which returns its new values and those of its velocity."""
        momentum = options["momentum"]
        velocity = momentum * state["velocity"] + (1.0 - momentum) * g
        u = (1.0 - momentum) * g + momentum * velocity if options["nesterov"] else velocity
        u = held.whole(u)
        shape, rows, columns = u.shape, u.shape[0], prod(u.shape[1:])
        u = op.reshape(u, (rows, columns))
        u = op.reshape(orthogonal(u, options["ns_steps"], options["eps"]), shape)
        matching = 0.2 * sqrt(max(rows, columns))
        multiple = matching if options["match_rms_adamw"] else sqrt(max(1, rows / max(columns, 1)))
        new = x * (1.0 - rate * decay) - rate * multiple * held.part(u)
        yield from ()  # It needs no sums.
        return new, {"velocity": velocity}


def orthogonal(x: Any, steps: int, eps: float) -> Any:
    """Return a matrix with the singular vectors of ``x`` and singular values of about 1, within
    [0.7, 1.2] for those that were not tiny, by ``steps`` Newton-Schulz iterations of fifth order.
    """
    tall = x.shape[0] > x.shape[1]
    x = op.permute_dims(x, (1, 0)) if tall else x
    x = x / op.maximum(op.sqrt(op.sum(x * x, axis=(0, 1))), max(eps, SMALLEST))
    a, b, c = QUINTIC
    for _ in range(steps):
        gram = op.matmul(x, op.permute_dims(x, (1, 0)))
        x = a * x + op.matmul(b * gram + c * op.matmul(gram, gram), x)
    return op.permute_dims(x, (1, 0)) if tall else x


with_adafactor = step_maker(Adafactor)
with_muon = step_maker(Muon)
