"""Layers in a row."""

from __future__ import annotations

from typing import Any

from meta.model.model import Model
from meta.model.trace import trace


class Sequential(Model):
    """Applies models one after the other. Their state is named by position: "0.weight"."""

    def build(self, *models: Model) -> None:
        """Keep the models, under "0", "1", ... as torch names them."""
        for i, model in enumerate(models):
            setattr(self, str(i), model)
        self.length = len(models)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the models in order."""
        for i in range(self.length):
            x = getattr(self, str(i))(x)
        return x
