"""Dropout layer."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model.model import Model
from meta.model.trace import trace


class Dropout(Model):
    """Zeroes each element with probability ``p`` and scales the others by 1 / (1 - p), in train
    mode only.
    """

    def build(self, p: float = 0.5) -> None:
        """Set the probability; ArgumentError unless 0 <= p < 1."""
        if not 0 <= p < 1:
            raise ArgumentError("p is no probability of dropping", expected="0 <= p < 1", found=p)
        self.p = p

    @trace
    def forward(self, x: Any) -> Any:
        """Apply dropout."""
        return x if self.p == 0 else op._contrib_dropout(x, self.p)[0]

    @trace
    def forward_infer(self, x: Any) -> Any:
        """Return the input."""
        return x
