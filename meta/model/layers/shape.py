"""Layers that leave the values alone."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.check import normalize_axis


class Identity(Model):
    """Returns its input. Takes the place of a layer that is left out, whatever that is made of."""

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the arguments."""

    @trace
    def forward(self, x: Any) -> Any:
        """Return the input."""
        return x


class Flatten(Model):
    """Merges the axes from ``start_dim`` to ``end_dim``, both included: of (n, c, h, w) it makes
    (n, c*h*w).
    """

    def build(self, start_dim: int = 1, end_dim: int = -1) -> None:
        """Set the axes; negative ones count from the last."""
        self.start_dim, self.end_dim = start_dim, end_dim

    @trace
    def forward(self, x: Any) -> Any:
        """Merge the axes."""
        first, last = (normalize_axis(d, x.ndim) for d in (self.start_dim, self.end_dim))
        if (first, last) == (1, x.ndim - 1):
            return op.batch_flatten(x)
        return op.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))
