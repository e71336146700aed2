"""Algorithms whose step is not a formula of elements: composed of operators, one parameter at a
time. See docs/howto/optimizer.md to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any, ClassVar

from meta import op
from meta.base.dtype import promote
from meta.optim.optimizer import Optimizer, Together
from meta.optim.options import require_range
from meta.optim.step import step_maker
from meta.runtime.ndarray import ndarray

__all__ = ["Adafactor", "Muon", "with_adafactor", "with_muon"]

Shape = tuple[int, ...]
SMALLEST = 2.0**-126
"""The smallest normal float32: what keeps a division by zero away is at least this."""


class Composed(Optimizer):
    """Base class of such algorithms. A subclass has `new_values`, and its state is
    ``own_state_names``; gradients, masters, groups, loss scale and the writing are those of
    `Optimizer`.
    """

    def new_values(
        self,
        x: Any,
        g: Any,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        rate: Any,
        decay: float,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the new values of a parameter and of its state.

        x, g, state: the parameter, its gradient (scaled, clamped) and its state by name, all in
        float32, or in float64 for such a parameter. options: those of its group. rate: the learning
        rate, shape (), of that dtype. ``self.step_count`` is the number of this step, from 1.
        """
        raise NotImplementedError

    def apply(
        self,
        call: Together,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        further: Mapping[str, Any],
    ) -> None:
        """Update the parameters of a call; see `Optimizer.apply`."""
        written: list[tuple[list[Any], list[Any]]] = [([], []), ([], []), ([], [])]
        masters, states, copies = written
        factor, bound = further["factor"], further.get("clip_value")
        for name, decay, multiple in zip(call.names, call.decays, call.rates, strict=True):
            x = self.master.get(name, params[name])
            wide = promote(x.dtype, "float32")
            g = op.astype(gradients[name], wide)
            if not isinstance(factor, float):
                g = g * op.astype(factor, wide)
            elif factor != 1.0:
                g = g * factor
            if bound is not None:
                g = op.clip(g, -bound, bound)
            kept = {kind: getattr(self, kind) for kind in self.own_state_names}
            own = {kind: of[name] for kind, of in kept.items() if name in of}
            rate = self.lr if multiple == 1 else self.lr * multiple
            new, state = self.new_values(
                op.astype(x, wide),
                g,
                {kind: op.astype(array, wide) for kind, array in own.items()},
                call.options,
                op.astype(rate, wide),
                decay,
            )
            for place, value, array in (
                (masters, new, x),
                *((states, state[kind], array) for kind, array in own.items()),
                *(((copies, new, params[name]),) if name in self.master else ()),
            ):
                place[0].append(value)
                place[1].append(array)
        for values, arrays in written:
            if arrays:
                op.multi_tensor_axpby(values, arrays, 1.0, 0.0, further["skip"])


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
    """

    own_state_names = ("rows", "columns", "v")
    of_elements = False
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

    def new_values(
        self,
        x: Any,
        g: Any,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        rate: Any,
        decay: float,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the new values of a parameter and of its means."""
        step = op.astype(self.step_count, x.dtype)
        fresh = op.pow(step, -options["beta2_decay"])
        square = g * g
        if len(x.shape) < 2:
            new = {"v": _toward(state["v"], square, fresh)}
            v = new["v"]
        else:
            new = {
                kind: _toward(state[kind], op.mean(square, axis=axis, keepdims=True), fresh)
                for kind, axis in (("rows", -1), ("columns", -2))
            }
            mean = op.mean(new["rows"], axis=-2, keepdims=True)
            v = new["rows"] * new["columns"] / op.maximum(mean, max(options["eps1"], SMALLEST))
        u = g * op.rsqrt(op.maximum(v, max(options["eps1"] ** 2, SMALLEST)))
        length = op.maximum(_rms(x), options["eps2"]) * op.minimum(rate, op.rsqrt(step))
        length = length / op.maximum(_rms(u) / options["d"], 1.0)
        return x * (1.0 - rate * decay) - length * u, new


def _toward(old: Any, new: Any, share: Any) -> Any:
    return old + share * (new - old)


def _rms(x: Any) -> Any:
    """Return the root of the mean square of all elements."""
    return op.sqrt(op.mean(x * x, axis=tuple(range(len(x.shape)))))


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
        if len(shape) > 1 and options["orthogonal"]:
            return {"velocity": shape}
        return {"m": shape, "v": shape}

    @classmethod
    def steps_by_element(cls, shape: Shape, options: Mapping[str, Any]) -> bool:
        """Whether a parameter has AdamW's step."""
        return len(shape) < 2 or not options["orthogonal"]

    def apply(
        self,
        call: Together,
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
    ) -> tuple[Any, dict[str, Any]]:
        """Return the new values of a matrix and of its velocity."""
        momentum = options["momentum"]
        velocity = momentum * state["velocity"] + (1.0 - momentum) * g
        u = (1.0 - momentum) * g + momentum * velocity if options["nesterov"] else velocity
        rows, columns = x.shape[0], prod(x.shape[1:])
        u = op.reshape(u, (rows, columns))
        u = op.reshape(orthogonal(u, options["ns_steps"], options["eps"]), x.shape)
        matching = 0.2 * sqrt(max(rows, columns))
        multiple = matching if options["match_rms_adamw"] else sqrt(max(1, rows / max(columns, 1)))
        new = x * (1.0 - rate * decay) - rate * multiple * u
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
