"""Activation layers."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.model import Model
from meta.model.trace import trace


class ReLU(Model):
    """max(x, 0)."""

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the activation."""
        return op.relu(x)


class GELU(Model):
    """x * Phi(x), with the exact normal distribution function."""

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the activation."""
        return op.gelu(x)
