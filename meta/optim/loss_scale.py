"""Loss scaling: gradients that half precision would round to zero are computed as multiples.

A scale is part of a `TrainingStep` and of its state. Nothing is decided on the host: the update is
given a factor that undoes the scale, and a flag that leaves it out.
"""

from __future__ import annotations

import copy
from typing import Any

from meta import op
from meta.base.errors import ArgumentError, NonFiniteError
from meta.model.model import Model
from meta.optim.options import require_range
from meta.runtime.ndarray import array

MAX_BAD_STEPS = 32
"""How many steps in a row may be left out before training is taken to have failed."""


class LossScale(Model):
    """Base class: a scale, and counts of steps.

    Attributes
    ----------
    scale: float32[]. good_steps, bad_steps: float32[], the steps in a row, up to the
    last, whose gradients were finite (since the scale last grew), and that were left out.

    >>> scale = meta.optim.DynamicLossScale(1024.0)
    >>> isinstance(scale, meta.optim.LossScale), scale.scale.item(), scale.bad_steps.item()
    (True, 1024.0, 0.0)
    """

    def build(self, init: float, max_bad_steps: int = MAX_BAD_STEPS) -> None:
        """Start with a scale."""
        require_range(type(self).__name__, "init", init, 0 < init < float("inf"), "> 0")
        if type(max_bad_steps) is not int or max_bad_steps < 1:
            raise ArgumentError(
                "max_bad_steps counts steps", expected="an int >= 1", found=max_bad_steps
            )
        self.max_bad_steps = max_bad_steps
        self.scale, self.good_steps, self.bad_steps = (
            array(n, "float32") for n in (init, 0.0, 0.0)
        )

    def copy_on(self, device: object) -> LossScale:
        """Return a scale of its own for a step on a device."""
        own = copy.deepcopy(self)
        own.to(device=device)
        return own

    def scaled(self, dy: Any) -> Any:
        """Return the gradient of a result times the scale."""
        if dy.dtype == "float16":
            raise ArgumentError(
                "a loss scale does not fit into the float16 of the model's result",
                expected="a result in float32",
                hint='meta.amp.autocast(model, out_dtype="float32"), or cast the loss',
            )
        return dy * op.astype(self.scale, dy.dtype)

    def follow(self, finite: Any, more: Any) -> Any:
        """Change the scale by whether the gradients are finite; return whether to skip the update.

        more: None, or whether the gradients are still being accumulated.
        """
        good, bad = self.good_steps, self.bad_steps
        is_good = op.astype(finite, "float32")
        scale, good = self.next_scale(is_good, (good + 1.0) * is_good)
        bad = (bad + 1.0) * (1.0 - is_good)
        own = [self.scale, self.good_steps, self.bad_steps]
        op.multi_tensor_axpby([scale, good, bad], own, 1.0, 0.0, more)
        skip = op.logical_not(finite)
        return skip if more is None else op.logical_or(skip, more)

    def next_scale(self, is_good: Any, good_steps: Any) -> tuple[Any, Any]:
        """Return the scale and the count of good steps after a step; is_good: float32[], 0 or 1."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise NonFiniteError if too many steps in a row were left out. Waits for the device."""
        bad = int(self.bad_steps.item())
        if bad >= self.max_bad_steps:
            raise NonFiniteError(
                f"the gradients were not finite in {bad} steps in a row",
                expected=f"fewer than {self.max_bad_steps}",
                found=f"a loss scale of {self.scale.item():g}",
                hint="look for the first result that is not finite with META_DEBUG_NANS=inf; the "
                "learning rate may be too high, or the data not finite",
            )


class StaticLossScale(LossScale):
    """A scale that stays as it is. Steps whose gradients are not finite are left out.

    >>> make = meta.optim.with_sgd(lr=0.1, loss_scale=meta.optim.StaticLossScale(1024.0))
    >>> step = make(meta.model.Linear(1, 1, bias=False))
    >>> y = step(meta.array([[float("inf")]]), meta.ones((1, 1)))  # changes no parameter
    >>> step.loss_scale.bad_steps.item(), step.model.weight.isfinite().item()
    (1.0, True)
    """

    def next_scale(self, is_good: Any, good_steps: Any) -> tuple[Any, Any]:
        """Return the scale as it is."""
        return self.scale * 1.0, good_steps


class DynamicLossScale(LossScale):
    """A scale that is halved when gradients are not finite, and grows after many good steps, as
    torch.amp.GradScaler's.

    Parameters
    ----------
    init: the first scale. growth_interval: the good steps in a row after which it is multiplied by
    growth_factor. backoff_factor: what it is multiplied by after a bad step, but not below
    min_scale. max_bad_steps: the steps in a row after which `check` raises.

    >>> make = meta.optim.with_sgd(lr=0.1, loss_scale=meta.optim.DynamicLossScale(1024.0))
    >>> make(meta.model.Linear(3, 1))(meta.ones((4, 1)), meta.ones((4, 3))).shape
    (4, 1)
    """

    def build(  # type: ignore[override]  # a constructor
        self,
        init: float = 2.0**16,
        growth_interval: int = 2000,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        min_scale: float = 0.0,
        max_bad_steps: int = MAX_BAD_STEPS,
    ) -> None:
        """Start with a scale."""
        super().build(init, max_bad_steps)
        who = type(self).__name__
        require_range(who, "growth_factor", growth_factor, growth_factor > 1, "> 1")
        require_range(who, "backoff_factor", backoff_factor, 0 < backoff_factor < 1, "in (0, 1)")
        require_range(who, "growth_interval", growth_interval, growth_interval >= 1, ">= 1")
        require_range(who, "min_scale", min_scale, 0 <= min_scale <= init, "from 0 to init")
        self.growth_interval, self.growth_factor = growth_interval, growth_factor
        self.backoff_factor, self.min_scale = backoff_factor, min_scale

    def next_scale(self, is_good: Any, good_steps: Any) -> tuple[Any, Any]:
        """Return the halved or grown scale; a growth beyond the largest float32 is left out."""
        scale = self.scale
        ripe = op.greater_equal(good_steps, float(self.growth_interval))
        grown = scale * self.growth_factor
        grows = op.logical_and(ripe, op.isfinite(grown))
        kept = op.where(grows, grown, scale * 1.0)
        less = op.maximum(scale * self.backoff_factor, self.min_scale)
        good_steps = good_steps * (1.0 - op.astype(ripe, "float32"))
        return op.where(op.greater(is_good, 0.5), kept, less), good_steps
