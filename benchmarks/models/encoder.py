"""A stack of layers of a transformer's encoder (Vaswani et al., arXiv:1706.03762), normalising
first, and a classifier of the mean: 8 sequences of 64 positions, width 256, 4 heads. Without
dropout, so that results can be compared.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from meta import op
from meta.model import GELU, LayerNorm, Linear, Model, Sequential, trace
from models.task import Task, classifier

BATCH, STEPS, WIDTH, HEADS, CLASSES = 8, 64, 256, 4, 10


class Attention(Model):
    """Multi-head self-attention of products and softmax, whose results all have a place in the
    arena; ATen's fused kernel, which torch eager runs, has memory of its own.
    """

    def build(self) -> None:
        """Make the projections; the first under torch's names of its arrays."""
        inside = Linear(WIDTH, 3 * WIDTH)
        self.in_proj_weight, self.in_proj_bias = inside.weight, inside.bias
        self.out_proj = Linear(WIDTH, WIDTH)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to (n, steps, width)."""
        parts = op.dense(op.reshape(x, (-1, WIDTH)), self.in_proj_weight)
        parts = op.add(parts, self.in_proj_bias)
        parts = op.reshape(parts, (*x.shape[:2], 3, HEADS, WIDTH // HEADS))
        parts = op.split(op.permute_dims(parts, (2, 0, 3, 1, 4)), 3, 0)
        flat = (x.shape[0] * HEADS, x.shape[1], WIDTH // HEADS)
        query, key, value = (op.reshape(part, flat) for part in parts)
        scores = op.divide(op.batch_matmul_nt(query, key), math.sqrt(flat[2]))
        y = op.batch_matmul(op.softmax(scores, -1), value)
        y = op.permute_dims(op.reshape(y, (x.shape[0], HEADS, *flat[1:])), (0, 2, 1, 3))
        return self.out_proj(op.reshape(y, x.shape))


class Layer(Model):
    """One layer, under torch's names."""

    def build(self) -> None:
        """Make the layers."""
        self.self_attn = Attention()
        self.norm1, self.norm2 = LayerNorm(WIDTH), LayerNorm(WIDTH)
        self.linear1, self.linear2 = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)
        self.activation = GELU()

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (n, steps, width)."""
        x = op.add(x, self.self_attn(self.norm1(x)))
        return op.add(x, self.linear2(self.activation(self.linear1(self.norm2(x)))))


class Encoder(Model):
    """The layers and the classifier."""

    def build(self, layers: int) -> None:
        """Make the layers."""
        self.layers, self.fc = Sequential(*(Layer() for _ in range(layers))), Linear(WIDTH, CLASSES)

    @trace
    def forward(self, x: Any) -> Any:
        """Return the scores of (n, steps, width)."""
        return self.fc(op.mean(self.layers(x), 1))


class TorchEncoder(nn.Module):
    """The same with torch."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
        )
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of (n, steps, width)."""
        return self.fc(self.layers(x).mean(1))


def encoder(layers: int) -> Task:
    """Return an encoder of so many layers."""
    return classifier(
        f"{layers} layer(s) of width {WIDTH}, {BATCH} x {STEPS}",
        partial(Encoder, layers),
        partial(TorchEncoder, layers),
        lambda: torch.randn(BATCH, STEPS, WIDTH),
        CLASSES,
    )
