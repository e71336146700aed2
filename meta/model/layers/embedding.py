"""Embedding layer."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model.layers.parameter import parameter
from meta.model.model import Model
from meta.model.trace import trace
from meta.runtime import random


class Embedding(Model):
    """Rows of ``weight`` (num_embeddings, embedding_dim) chosen by integer indices of any shape.

    The row ``padding_idx``, if there is one, begins as zero and gets no gradient; a negative one
    counts from the last.
    """

    def build(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None
    ) -> None:
        """Make weight, standard normal."""
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                "there is no such row",
                expected=f"{-num_embeddings} to {num_embeddings - 1}",
                found=padding_idx,
            )
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = parameter(random.normal((num_embeddings, embedding_dim)))
        if padding_idx is not None:
            self.weight.torch()[padding_idx] = 0

    @trace
    def forward(self, indices: Any) -> Any:
        """Look the indices up; the result has one axis more."""
        return op.embedding(self.weight, indices, self.padding_idx)
