"""Normalisation layers."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.layers.parameter import parameter
from meta.model.model import Model
from meta.model.trace import trace
from meta.runtime.ndarray import array


class BatchNorm(Model):
    """Batch normalisation over all axes but 1, of (n, c, ...).

    In train mode it normalises with the batch's statistics and updates ``running_mean`` and
    ``running_var`` in place (``momentum`` is the weight of the new value); in infer mode it uses
    those. ``weight``, ``bias``: (c,) or None.
    """

    not_kept = ("num_batches_tracked",)

    def build(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True
    ) -> None:
        """Make weight = 1, bias = 0, running_mean = 0, running_var = 1."""
        self.eps, self.momentum = eps, momentum
        self.weight = parameter(array([1.0] * num_features)) if affine else None
        self.bias = parameter(array([0.0] * num_features)) if affine else None
        self.running_mean = array([0.0] * num_features)
        self.running_var = array([1.0] * num_features)

    @trace
    def forward(self, x: Any) -> Any:
        """Normalise with the batch's statistics and update the running ones."""
        y, _, _ = op.batch_norm_train(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.momentum, self.eps
        )
        return y

    @trace
    def forward_infer(self, x: Any) -> Any:
        """Normalise with the running statistics."""
        return op.batch_norm_infer(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.momentum, self.eps
        )


class LayerNorm(Model):
    """Layer normalisation over the last axis, with affine parameters ``weight`` and ``bias`` of its
    extent.
    """

    def build(self, num_features: int, eps: float = 1e-5) -> None:
        """Make weight = 1, bias = 0."""
        self.eps = eps
        self.weight = parameter(array([1.0] * num_features))
        self.bias = parameter(array([0.0] * num_features))

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer."""
        return op.layer_norm(x, self.weight, self.bias, -1, self.eps)
