"""BERT-tiny (Devlin et al., arXiv:1810.04805; Turc et al., arXiv:1908.08962): 2 layers of width 128
with 2 heads and a vocabulary of 30522, classifying sentences. Without dropout, so that results can
be compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from meta import op
from meta.model import Embedding, LayerNorm, Linear, Model, Sequential, trace
from models.network import Network

WIDTH, HEADS, INNER, LAYERS, VOCABULARY, POSITIONS = 128, 2, 512, 2, 30522, 512
EPS = 1e-12


class Layer(Model):
    """One layer of the encoder, normalising last."""

    def build(self) -> None:
        """Make the layers."""
        self.query, self.key, self.value, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm1, self.norm2 = LayerNorm(WIDTH, EPS), LayerNorm(WIDTH, EPS)
        self.up, self.down = Linear(WIDTH, INNER), Linear(INNER, WIDTH)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (n, steps, width)."""
        n, steps, width = x.shape

        def heads(y: Any) -> Any:
            return op.transpose(op.reshape(y, (n, steps, HEADS, width // HEADS)), (0, 2, 1, 3))

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        y, _ = op.scaled_dot_product_attention(q, k, v)
        y = self.out(op.reshape(op.transpose(y, (0, 2, 1, 3)), (n, steps, width)))
        x = self.norm1(op.add(x, y))
        return self.norm2(op.add(x, self.down(op.gelu(self.up(x)))))


class BertTiny(Model):
    """Embeddings, encoder, pooled first token, classifier."""

    def build(self) -> None:
        """Make the layers."""
        self.words, self.positions = Embedding(VOCABULARY, WIDTH), Embedding(POSITIONS, WIDTH)
        self.types = Embedding(2, WIDTH)
        self.norm = LayerNorm(WIDTH, EPS)
        self.layers = Sequential(*(Layer() for _ in range(LAYERS)))
        self.pool, self.classify = Linear(WIDTH, WIDTH), Linear(WIDTH, 2)

    @trace
    def forward(self, words: Any) -> Any:
        """Return the scores of (n, steps) words, all of type 0."""
        n, steps = words.shape
        x = op.add(self.words(words), self.types(op.zeros((n, steps), "int64")))
        x = self.norm(op.add(x, self.positions(op.arange(0, steps, 1, "int64"))))
        x = self.layers(x)
        first = op.reshape(op.strided_slice(x, (0, 0), (n, 1)), (n, WIDTH))
        return self.classify(op.tanh(self.pool(first)))


class TorchLayer(nn.Module):
    """The same with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (n, steps, width)."""
        n, steps, width = x.shape

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(n, steps, HEADS, width // HEADS).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        y = self.out(y.transpose(1, 2).reshape(n, steps, width))
        x = self.norm1(x + y)
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class TorchBertTiny(nn.Module):
    """The same with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPS)
        self.layers = nn.Sequential(*(TorchLayer() for _ in range(LAYERS)))
        self.pool, self.classify = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores of (n, steps) words, all of type 0."""
        x = self.words(words) + self.types(torch.zeros_like(words))
        x = self.norm(x + self.positions(torch.arange(words.shape[1])))
        x = self.layers(x)
        return self.classify(torch.tanh(self.pool(x[:, 0])))


BERT_TINY = Network(
    "bert-tiny",
    "64 words, batch 8",
    BertTiny,
    TorchBertTiny,
    lambda: torch.randint(VOCABULARY, (8, 64)),
    classes=2,
)
