"""Modules of which random models are made, besides those of `torch.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Apply(nn.Module):
    """A function of a tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Again(nn.Module):
    """A module that is computed again for its gradient."""

    def __init__(self, *inner: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Sequential(*inner), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Twice(nn.Module):
    """A module that is called twice: its parameters are shared."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class First(nn.Module):
    """The sequence of a module that returns it with its states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Lora(nn.Module):
    """A frozen layer, to whose weight a product of two thin matrices is added."""

    def __init__(self, base: nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.b.weight, std=0.1)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.b(self.a(x))


class Running(nn.Module):
    """Divides by a running root mean square of each channel, and counts its calls."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("square", torch.ones(channels))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("unsaved", torch.full((channels,), 0.5), persistent=False)
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                own = x.reshape(-1, x.shape[-1]).square().mean(0).to(self.square.dtype)
                self.square.mul_(0.9).add_(0.1 * own)
                self.calls += 1
        return x * self.weight / (self.square.sqrt() + self.unsaved)


class Attention(nn.Module):
    """Attention of tokens to each other, [B, T, C], by PyTorch's function or written out."""

    def __init__(
        self, width: int, heads: int, causal: bool = False, spelt: str = "sdpa", kv: int = 0
    ) -> None:
        super().__init__()
        self.heads, self.kv = heads, kv or heads
        self.each, self.causal, self.spelt = width // heads, causal, spelt
        self.q = nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, self.kv * self.each, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q = self.q(x).view(n, t, self.heads, self.each).transpose(1, 2)
        k, v = (f(x).view(n, t, self.kv, self.each).transpose(1, 2) for f in (self.k, self.v))
        k, v = (y.repeat_interleave(self.heads // self.kv, 1) for y in (k, v))
        if self.spelt == "sdpa":
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) * self.each**-0.5
            if self.causal:
                after = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(after, torch.finfo(scores.dtype).min)
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, -1))


class Rotary(nn.Module):
    """Turns pairs of channels by angles that grow with the place of a token, [B, T, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        rates = 1.0 / 100.0 ** (torch.arange(0, channels, 2).float() / channels)
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), self.rates.float())
        cos, sin = (f(torch.cat([angles, angles], -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin


class Gated(nn.Module):
    """The product of an activation and a layer, as in SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, inner, bias=False), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Two layers, of which a softmax of the input weighs the results."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2)
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(weights[..., i : i + 1] * f(x) for i, f in enumerate(self.inner))  # type: ignore


class Squeeze(nn.Module):
    """Weighs the channels of an image by a gate of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(functional.relu(self.down(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


class Words(nn.Module):
    """Embeddings of words and of their places, [B, T] to [B, T, C]."""

    def __init__(self, count: int, width: int, padding: int | None = None) -> None:
        super().__init__()
        self.word = nn.Embedding(count, width, padding_idx=padding)
        self.place = nn.Embedding(16, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.word(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))


class Table(nn.Module):
    """Embeddings of categories beside numbers, (ids [B, 3], x [B, C]) to [B, C]."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.bag, self.layer = nn.EmbeddingBag(count, width), nn.Linear(6, width)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.bag(ids) + self.layer(x)


class Tied(nn.Module):
    """A last layer whose weight is that of the embedding of words."""

    def __init__(self, words: Words) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(words.word.num_embeddings))
        self.weight = words.word.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class Model(nn.Module):
    """Layers one after the other; with a loss, and targets, it returns that, alone or in a dict."""

    def __init__(
        self, layers: list[nn.Module], loss: Callable[..., Tensor], returns: str = "result"
    ) -> None:
        super().__init__()
        self.first, self.rest = layers[0], nn.Sequential(*layers[1:])
        self.loss, self.returns = loss, returns

    def forward(self, *inputs: Any, target: Tensor | None = None) -> Any:
        y = self.rest(self.first(*inputs))
        if self.returns == "result" or target is None:
            return y
        loss = self.loss(y, target)
        return loss if self.returns == "loss" else {"loss": loss, "y": y}
