"""Linear layer."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.layers.parameter import fan_in_uniform
from meta.model.model import Model
from meta.model.trace import trace


class Linear(Model):
    """y = x w^T + b on the last axis.

    ``weight``: (out_features, in_features); ``bias``: (out_features,) or None.
    ``x``: (..., in_features).
    """

    def build(self, in_features: int, out_features: int, bias: bool = True) -> None:
        """Make weight and bias, both uniform on +-1/sqrt(in_features)."""
        self.weight = fan_in_uniform((out_features, in_features), in_features)
        self.bias = fan_in_uniform((out_features,), in_features) if bias else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to an array with any number of leading axes."""
        rows = x if x.ndim == 2 else op.reshape(x, (-1, x.shape[-1]))
        y = op.dense(rows, self.weight)
        if x.ndim != 2:
            y = op.reshape(y, (*x.shape[:-1], self.weight.shape[0]))
        # Last, so that the addition is a neighbour of what follows and runs in one kernel with it.
        return y if self.bias is None else op.add(y, self.bias)
