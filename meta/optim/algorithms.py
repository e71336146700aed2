"""The algorithms: each names its operator, its state and its options with their defaults. See
docs/howto/optimizer.md to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any, ClassVar

from meta import op
from meta.base.errors import ArgumentError
from meta.optim.data_parallel import ParameterShard, Step, apply_sharded_steps
from meta.optim.optimizer import Optimizer, ParameterBatch
from meta.optim.options import require_range
from meta.optim.step import step_maker
from meta.runtime.ndarray import ndarray

__all__ = [
    *("SGD", "Adam", "AdamW", "LAMB", "LANS", "RMSprop", "Adagrad", "Lion"),
    *("with_sgd", "with_adam", "with_adamw", "with_lamb", "with_lans"),
    *("with_rmsprop", "with_adagrad", "with_lion"),
    *("Adafactor", "Muon", "with_adafactor", "with_muon"),
]


class SGD(Optimizer):
    """SGD, as torch.optim.SGD without dampening; see `Optimizer` for the shared arguments. The
    state is one ``velocity`` per parameter, zeros at first; none where there is no momentum.

    Parameters
    ----------
    momentum: weight of the old velocity, in [0, 1). nesterov: look ahead along the velocity.
    weight_decay: the multiple of a parameter that is added to its gradient.

    >>> x = meta.model.parameter(meta.array([1.0, -2.0]))
    >>> optimizer = meta.optim.SGD([x], lr=0.25, momentum=0.9)
    >>> (x * x).sum().backward()
    >>> optimizer.step()
    >>> x.tolist(), optimizer.step_count.item()
    ([0.5, -1.0], 1.0)
    """

    operator = op.multi_tensor_sgd
    state_names = ("velocity",)
    torch_names: ClassVar[dict[str, str]] = {"velocity": "momentum_buffer"}
    velocity: dict[str, ndarray]
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-3,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    }
    shares = ("momentum",)

    @classmethod
    def state_shapes(
        cls, shape: tuple[int, ...], options: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is kept of a parameter: a velocity if there is a momentum."""
        return {"velocity": shape} if options["momentum"] else {}

    @classmethod
    def validate(cls, lr: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options that do not fit together, or out of their range."""
        super().validate(lr, options)
        if options["nesterov"] and options["momentum"] == 0:
            raise ArgumentError(
                "nesterov looks ahead along the momentum, and there is none",
                hint="momentum=0.9, or nesterov=False",
            )


class Adam(Optimizer):
    """Adam, as torch.optim.Adam (arXiv:1412.6980): the weight decay is a part of the gradient. See
    `Optimizer` for the shared arguments. The state is two moments per parameter, ``m`` and ``v``,
    zeros at first.

    Parameters
    ----------
    betas: how much of the running means of the gradient and of its square stays, each in [0, 1).
    eps: keeps a division by zero away. weight_decay: the pull towards zero.

    >>> net = meta.model.Linear(3, 1)
    >>> meta.optim.Adam(net.parameters(), lr=0.5, betas=(0.9, 0.98)).param_groups[0]["lr"]
    0.5
    """

    operator = op.multi_tensor_adam
    state_names = ("m", "v")
    torch_names: ClassVar[dict[str, str]] = {"m": "exp_avg", "v": "exp_avg_sq"}
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    shares = ("betas",)


class AdamW(Adam):
    """AdamW, as torch.optim.AdamW (arXiv:1711.05101): parameters decay by lr *
    weight_decay at each step. See `Adam` for the arguments.

    >>> step = meta.optim.with_adamw(lr=1e-3, weight_decay=0.01)(meta.model.Linear(3, 1))
    >>> step(meta.ones((4, 1)), meta.ones((4, 3))).shape
    (4, 1)
    """

    operator = op.multi_tensor_adamw
    torch_options: ClassVar[dict[str, Any]] = {"decoupled_weight_decay": True}
    defaults = Adam.defaults | {"weight_decay": 0.01}


class LAMB(Adam):
    """LAMB (arXiv:1904.00962, algorithm 2), for large batches: Adam's direction with the weight
    decay, scaled to the norm of each parameter. See `Adam` for the arguments.

    >>> x = meta.model.parameter(meta.array([3.0, 4.0], dtype="float64"))
    >>> optimizer = meta.optim.LAMB([x], lr=0.1, weight_decay=0.0)
    >>> x.sum().backward()
    >>> optimizer.step()  # along (1, 1), by lr * norm(x)
    >>> meta.round(x, 3).tolist()
    [2.646, 3.646]
    """

    operator = op.multi_tensor_lamb
    torch_names: ClassVar[dict[str, str]] = {}
    defaults = AdamW.defaults | {"eps": 1e-6}


class LANS(Adam):
    """LANS (arXiv:2006.13484, algorithm 2), for very large batches: gradients are normalized one by
    one, and the step is a mean of the directions of the moment and of the gradient. See `Adam` for
    the arguments.

    >>> x = meta.model.parameter(meta.array([3.0, 4.0], dtype="float64"))
    >>> optimizer = meta.optim.LANS([x], lr=0.1, weight_decay=0.0)
    >>> x.sum().backward()
    >>> optimizer.step()
    >>> meta.round(x, 3).tolist()
    [2.646, 3.646]
    """

    operator = op.multi_tensor_lans
    torch_names: ClassVar[dict[str, str]] = {}
    defaults = LAMB.defaults


class RMSprop(Optimizer):
    """RMSprop, as torch.optim.RMSprop (Tieleman and Hinton, 2012); see `Optimizer` for the shared
    arguments. The state is a mean of squares per parameter, ``v``; one of gradients, ``m``, if it
    is centered; and a ``velocity`` if there is a momentum; zeros at first.

    Parameters
    ----------
    alpha: how much of the running means stays, in [0, 1). eps: keeps a division by zero away.
    weight_decay: the multiple of a parameter that is added to its gradient.
    momentum: weight of the old velocity, in [0, 1). centered: divide by the standard deviation of
    the gradient, not by the root of its mean square.

    >>> x = meta.model.parameter(meta.array([1.0, -2.0], dtype="float64"))
    >>> optimizer = meta.optim.RMSprop([x], lr=0.1, alpha=0.75)
    >>> (x * x).sum().backward()
    >>> optimizer.step()  # by lr / sqrt(1 - alpha), at first
    >>> meta.round(x, 4).tolist()
    [0.8, -1.8]
    """

    operator = op.multi_tensor_rmsprop
    state_names = ("v", "m", "velocity")
    torch_names: ClassVar[dict[str, str]] = {
        "v": "square_avg",
        "m": "grad_avg",
        "velocity": "momentum_buffer",
    }
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "centered": False,
    }
    shares = ("alpha", "momentum")

    @classmethod
    def state_shapes(
        cls, shape: tuple[int, ...], options: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is kept of a parameter with these options."""
        kept = {"v": True, "m": options["centered"], "velocity": options["momentum"] > 0}
        return {name: shape for name, is_kept in kept.items() if is_kept}


class Adagrad(Optimizer):
    """Adagrad, as torch.optim.Adagrad (Duchi et al., 2011); see `Optimizer` for the shared
    arguments. The state is a sum of squares of the gradient per parameter, ``v``.

    Parameters
    ----------
    lr_decay: step number i, from 0, has the learning rate divided by 1 + i * this.
    weight_decay: the multiple of a parameter that is added to its gradient.
    initial_accumulator_value: what ``v`` is at first. eps: keeps a division by zero away.

    >>> x = meta.model.parameter(meta.array([1.0, -2.0]))
    >>> optimizer = meta.optim.Adagrad([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> optimizer.step()  # by the sign, at first
    >>> x.tolist()
    [0.5, -1.5]
    """

    operator = op.multi_tensor_adagrad
    state_names = ("v",)
    torch_names: ClassVar[dict[str, str]] = {"v": "sum"}
    v: dict[str, ndarray]
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    }

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the state; see the class for the arguments."""
        super().build(*args, **kwargs)
        for group in self.groups:
            initial = {**self.options, **group}["initial_accumulator_value"]
            for name in group["names"]:
                self.v[name].tensor.fill_(initial)


class Lion(Optimizer):
    """Lion (arXiv:2302.06675, program 1): steps of one size along the sign of a mean of gradients.
    It needs a smaller learning rate and a larger weight decay than AdamW, by a factor of 3 to 10.
    See `Optimizer` for the shared arguments. The state is one mean per parameter, ``m``, zeros at
    first.

    Parameters
    ----------
    betas: weight of ``m`` in the step, and in the new ``m``, each in [0, 1).
    weight_decay: parameters decay by lr * weight_decay at each step.

    >>> step = meta.optim.with_lion(lr=1e-4)(meta.model.Linear(3, 1))
    >>> step(meta.ones((4, 1)), meta.ones((4, 3))).shape
    (4, 1)
    """

    operator = op.multi_tensor_lion
    state_names = ("m",)
    defaults: ClassVar[dict[str, Any]] = {
        "lr": 1e-4,
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
    }
    shares = ("betas",)


with_sgd = step_maker(SGD)
with_adam = step_maker(Adam)
with_adamw = step_maker(AdamW)
with_lamb = step_maker(LAMB)
with_lans = step_maker(LANS)
with_rmsprop = step_maker(RMSprop)
with_adagrad = step_maker(Adagrad)
with_lion = step_maker(Lion)


# Algorithms whose step is not a formula of elements: composed of operators, one parameter at a
# time.


Shape = tuple[int, ...]
SMALLEST = 2.0**-126
"""The smallest normal float32: what keeps a division by zero away is at least this."""


class Composed(Optimizer):
    """Base class of such algorithms. A subclass has `new_values`, a generator, and its state is
    ``own_state_names``; gradients, masters, groups, loss scale and the writing are those of
    `Optimizer`, sums over parameters of which ranks have parts those of `meta.optim.data_parallel`.
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
