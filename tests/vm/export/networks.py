"""Networks that are exported, with inputs of every kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import meta
from meta import model
from meta.model import trace

SEED = 0


class Convolutions(meta.Model):
    """Two convolutions with batch normalisation, pooling, a linear layer."""

    def build(self):
        self.one, self.two = model.Conv2d(3, 8, 3, padding=1), model.Conv2d(8, 12, 3, stride=2)
        self.norm, self.last = model.BatchNorm(8), model.BatchNorm(12)
        self.head = model.Linear(12 * 3 * 3, 5)

    @trace
    def forward(self, images):
        hidden = meta.max_pool2d(self.norm(self.one(images)).relu(), 2)
        hidden = self.last(self.two(hidden)).relu()
        return self.head(hidden.reshape((hidden.shape[0], -1)))


class Perceptron(meta.Model):
    """Linear layers with a norm and odd sizes; several results, a nested one among them."""

    def build(self):
        self.one, self.norm, self.two = (
            model.Linear(7, 33),
            model.LayerNorm(33),
            model.Linear(33, 5),
        )

    @trace
    def forward(self, x):
        hidden = self.norm(meta.gelu(self.one(x)))
        scores = self.two(hidden)
        return {"scores": scores, "more": (hidden.mean(axis=-1), scores.softmax(axis=-1))}


class Encoder(meta.Model):
    """Words, with a block of a transformer."""

    def build(self):
        self.words = model.Embedding(50, 16)
        self.block = model.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    @trace
    def forward(self, words):
        return self.block(self.words(words))


class Tokens(meta.Model):
    """A token that all rows have in front, places, and a head of what is flattened."""

    def build(self):
        self.token = meta.random.normal((1, 1, 8), device="cpu")
        self.places = meta.random.normal((1, 4, 8), device="cpu")
        self.head = model.Linear(32, 3)

    @trace
    def forward(self, x):
        token = meta.broadcast_to(self.token, (x.shape[0], 1, 8))
        hidden = meta.concat([token, x], axis=1) + self.places
        return self.head(meta.batch_flatten(hidden)), hidden[:, 0]


@trace
def elementwise(x, y):
    """Broadcasts, and functions of the C library."""
    return meta.tanh(x) * y + meta.erf(x - 2.5), meta.exp(-x).log1p(), (x > y).astype("int32")


@trace
def integers(x, y):
    return x // y, x % y, meta.maximum(x, y) * 3, x.sum(axis=0)


@trace
def reshaped(x):
    """Views of symbolic extents, one of what is computed, and a sum of them."""
    return meta.exp(x).reshape((-1,)), x.reshape((x.shape[0] * 3, -1)) * 2


@trace
def unchanged(x):
    """An input, a view of it, a constant and one result twice: all are copied."""
    doubled = x * 2
    return x, x.reshape((-1,)), meta.array([1.5, 2.5], device="cpu"), doubled, doubled


@dataclass(frozen=True)
class Case:
    """A network; its inputs, as types or as functions that make them."""

    make: Callable[[], Any]
    types: tuple[str, ...]
    inputs: tuple[Any, ...] = ()
    tolerance: float = 2e-5
    dims: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    freeze: bool = False

    def network(self):
        torch.manual_seed(SEED)
        meta.random.seed(SEED)
        made = self.make()
        return made.eval() if isinstance(made, meta.Model) else made

    def compiled(self, made):
        types = map(meta.ir.parse_type, self.types)
        return meta.vm.compile(made, *types, dims=self.dims, freeze=self.freeze)

    def tensors(self, **dims: int) -> list[torch.Tensor]:
        """Return inputs, for extents of the dimensions."""
        torch.manual_seed(1)
        found = []
        for i, text in enumerate(self.types):
            type_ = meta.ir.parse_type(text)
            shape = [d if isinstance(d, int) else d.evaluate(dims) for d in type_.shape]
            dtype = meta.base.dtype.TO_TORCH[type_.dtype]
            make = self.inputs[i] if self.inputs else None
            found.append(torch.randn(shape).to(dtype) if make is None else make(shape).to(dtype))
        return found


def below(most: int) -> Callable[[list[int]], torch.Tensor]:
    """Return what makes integers from 1 to less than a number."""
    return lambda shape: torch.randint(1, most, shape)


def in_dtype(kind: type, dtype: str) -> Callable[[], Any]:
    return lambda: kind().to(dtype=dtype)


CASES = {
    "convolutions": Case(Convolutions, ("float32[2, 3, 16, 16]",)),
    "perceptron": Case(Perceptron, ("float32[3, 7]",)),
    "encoder": Case(Encoder, ("int64[2, 5]",), (below(50),)),
    "elementwise": Case(lambda: elementwise, ("float32[3, 1, 7]", "float32[5, 1]")),
    "double": Case(lambda: elementwise, ("float64[13]", "float64[13]"), tolerance=1e-12),
    "scalar": Case(lambda: elementwise, ("float32[]", "float32[]")),
    "empty": Case(lambda: elementwise, ("float32[0, 3]", "float32[3]")),
    "integers": Case(lambda: integers, ("int64[5, 3]", "int64[3]"), (below(99), below(9))),
    "bytes": Case(lambda: integers, ("uint8[5, 3]", "uint8[5, 3]"), (below(99), below(9))),
    "unchanged": Case(lambda: unchanged, ("float32[2, 3]",)),
    "symbolic": Case(lambda: elementwise, ("float32[n, 3, m]", "float32[3, m]")),
    "reshaped": Case(lambda: reshaped, ("float32[n, 3, m]",)),
    "batch": Case(Convolutions, ("float32[n, 3, 16, 16]",), dims={"n": (1, 64)}),
    "frozen": Case(Convolutions, ("float32[2, 3, 16, 16]",), freeze=True),
    "frozen batch": Case(Convolutions, ("float32[n, 3, 16, 16]",), freeze=True),
    "frozen rows": Case(Perceptron, ("float32[rows, 7]",), freeze=True),
    "rows": Case(Perceptron, ("float32[rows, 7]",)),
    "texts": Case(Encoder, ("int64[n, 5]",), (below(50),), dims={"n": (1, 3)}),
    "tokens": Case(Tokens, ("float32[n, 3, 8]",), dims={"n": (1, 5)}),
    "bfloat16": Case(in_dtype(Perceptron, "bfloat16"), ("bfloat16[3, 7]",), tolerance=3e-2),
    "float16": Case(in_dtype(Perceptron, "float16"), ("float16[3, 7]",), tolerance=4e-3),
}
