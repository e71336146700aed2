"""The algorithms: each names its operator, its state and its options with their defaults. See
docs/howto/optimizer.md to add one.
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
    *("SGD", "Adam", "AdamW", "LAMB", "LANS"),
    *("with_sgd", "with_adam", "with_adamw", "with_lamb", "with_lans"),
]


class SGD(Optimizer):
    """SGD, as torch.optim.SGD without dampening; see `Optimizer` for the shared arguments. The
    state is one ``velocity`` per parameter, zeros at first; none where there is no momentum.

    Parameters
    ----------
    momentum: weight of the old velocity, in [0, 1). nesterov: look ahead along the velocity.
    weight_decay: the multiple of a parameter that is added to its gradient.
    """

    operator = op.multi_tensor_sgd
    state_names = ("velocity",)
    velocity: dict[str, ndarray]
    defaults: ClassVar[dict[str, Any]] = {
        "learning_rate": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    }

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the state; see the class for the arguments."""
        super().build(*args, **kwargs)
        momentum = self.options["momentum"]
        moving = {n for g in self.groups if g.get("momentum", momentum) for n in g["names"]}
        self.velocity = {name: v for name, v in self.velocity.items() if name in moving}

    @classmethod
    def validate(cls, learning_rate: float, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for options that do not fit together, or out of their range."""
        super().validate(learning_rate, options)
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
    beta1, beta2: how much of the running means of the gradient and of its square stays, in [0, 1).
    eps: keeps a division by zero away. weight_decay: the pull towards zero.
    """

    operator = op.multi_tensor_adam
    state_names = ("m", "v")
    defaults: ClassVar[dict[str, Any]] = {
        "learning_rate": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
    }


class AdamW(Adam):
    """AdamW, as torch.optim.AdamW (arXiv:1711.05101): parameters decay by learning_rate *
    weight_decay at each step. See `Adam` for the arguments.
    """

    operator = op.multi_tensor_adamw
    defaults = Adam.defaults | {"weight_decay": 0.01}


class LAMB(Adam):
    """LAMB (arXiv:1904.00962, algorithm 2), for large batches: Adam's direction with the weight
    decay, scaled to the norm of each parameter. See `Adam` for the arguments.
    """

    operator = op.multi_tensor_lamb
    defaults = AdamW.defaults | {"eps": 1e-6}


class LANS(Adam):
    """LANS (arXiv:2006.13484, algorithm 2), for very large batches: gradients are normalized one by
    one, and the step is a mean of the directions of the moment and of the gradient. See `Adam` for
    the arguments.
    """

    operator = op.multi_tensor_lans
    defaults = LAMB.defaults


with_sgd = step_maker(SGD)
with_adam = step_maker(Adam)
with_adamw = step_maker(AdamW)
with_lamb = step_maker(LAMB)
with_lans = step_maker(LANS)
