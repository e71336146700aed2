"""Small models that the tests of the backend compile, each with its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 16, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads, self.drop = heads, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Recurrent(nn.Module):
    """An LSTM and a layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    """A language model whose output layer has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.embedding(x)))


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def cnn() -> nn.Module:
    """Convolutions, batch normalisation and pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


Made = tuple[nn.Module, tuple[Any, ...]]
MODELS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (mlp(), (torch.randn(5, 8),)),
    "cnn": lambda: (cnn(), (torch.randn(2, 3, 12, 12),)),
    "transformer": lambda: (Block(), (torch.randn(2, 5, 16),)),
    "lstm": lambda: (Recurrent(), (torch.randn(2, 4, 6),)),
    "tied": lambda: (Tied(), (torch.randint(0, 12, (2, 5)),)),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> Made:
    """Return a model and its inputs, the same ones at each call, floats in a dtype."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    floats = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return model.to(dtype), floats
