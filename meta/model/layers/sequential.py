"""Layers in a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.base.errors import ArgumentError
from meta.model.model import Model
from meta.model.trace import trace


class Sequential(Model):
    """Applies models one after the other. Their state is named by position: "0.weight".

    ``len``, iteration and an index give the models, as of a list; a slice is a `Sequential`.
    """

    def build(self, *models: Model) -> None:
        """Keep the models, under "0", "1", ... as torch names them."""
        for i, model in enumerate(models):
            if not isinstance(model, Model):
                raise ArgumentError(
                    "Sequential is made of models",
                    found=f"argument {i}: {type(model).__name__}",
                    hint="write Sequential(*models) for a list of models",
                )
            setattr(self, str(i), model)
        self.length = len(models)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Model]:
        return (getattr(self, str(i)) for i in range(self.length))

    def __getitem__(self, index: int | slice) -> Model:
        found = list(self)[index]
        return Sequential(*found) if isinstance(found, list) else found

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the models in order."""
        for model in self:
            x = model(x)
        return x
