"""The algorithms whose step is a formula of elements: each names its operator, its state and its
options with their defaults. See docs/howto/optimizer.md to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from meta import op
from meta.base.errors import ArgumentError
from meta.optim.optimizer import Optimizer
from meta.optim.step import step_maker
from meta.runtime.ndarray import ndarray

__all__ = [
    *("SGD", "Adam", "AdamW", "LAMB", "LANS", "RMSprop", "Adagrad", "Lion"),
    *("with_sgd", "with_adam", "with_adamw", "with_lamb", "with_lans"),
    *("with_rmsprop", "with_adagrad", "with_lion"),
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
