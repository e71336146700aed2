"""Embedding layer."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.layers.parameter import parameter
from meta.model.model import Model
from meta.model.trace import trace
from meta.runtime import random


class Embedding(Model):
    """Rows of ``weight`` (num_embeddings, embedding_dim) chosen by integer indices of any shape."""

    def build(self, num_embeddings: int, embedding_dim: int) -> None:
        """Make weight, standard normal."""
        self.weight = parameter(random.normal((num_embeddings, embedding_dim)))

    @trace
    def forward(self, indices: Any) -> Any:
        """Look the indices up; the result has one axis more."""
        return op.embedding(self.weight, indices)
