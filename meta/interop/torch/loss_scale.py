"""A scaler of `torch.amp` as a loss scale of ours, on the same tensors."""

from __future__ import annotations

from typing import Any

import torch

from meta import op
from meta.optim.loss_scale import LossScale
from meta.runtime.ndarray import ndarray


class SharedLossScale(LossScale):
    """The scale of a `torch.amp.GradScaler`, which changes as ``scaler.update()`` changes it.

    Attributes
    ----------
    scale: float32[], the scaler's. growth_tracker: int32[], the steps in a row whose gradients were
    finite, since the scale last grew.
    """

    def build(self, scaler: torch.amp.GradScaler, device: str) -> None:  # type: ignore[override]
        """Take a scaler, whose tensors it makes for a device at its first use."""
        scaler.scale(torch.zeros((), device=device))
        scale, count = scaler._scale, scaler._growth_tracker
        assert scale is not None and count is not None
        self.scale, self.growth_tracker = ndarray(scale), ndarray(count)
        self._growth = scaler.get_growth_factor()
        self._backoff = scaler.get_backoff_factor()
        self._interval = scaler.get_growth_interval()

    def copy_on(self, device: object) -> LossScale:
        """Return itself: there is one scaler."""
        return self

    def follow(self, finite: Any, more: Any) -> Any:
        """Change the scale as torch's ``_amp_update_scale_`` does; see `LossScale.follow`."""
        scale, count = self.scale, self.growth_tracker + 1
        ripe = op.equal(count, self._interval)
        grown = scale * self._growth
        grown = op.where(op.logical_and(ripe, op.isfinite(grown)), grown, scale)
        new = op.where(finite, grown, scale * self._backoff)
        count = op.where(op.logical_and(finite, op.logical_not(ripe)), count, 0)
        if more is not None:  # gradients are still added up
            new = op.where(more, scale, new)
            count = op.where(more, self.growth_tracker, count)
        self.scale, self.growth_tracker = new, count
        skip = op.logical_not(finite)
        return skip if more is None else op.logical_or(skip, more)
