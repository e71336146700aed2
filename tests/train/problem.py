"""A small problem that trains in milliseconds, with all that a run must keep: dropout, running
statistics, momentum, shuffled data. Everything runs on torch's kernels, so nothing is compiled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import meta
from meta import op
from meta.model import BatchNorm, Dropout, Linear, Model, ReLU, Sequential
from meta.optim import with_sgd
from meta.train import Batches, Record, fit

SAMPLES, FEATURES, CLASSES, SIZE = 40, 4, 3, 8


def kernels() -> AbstractContextManager[None]:
    """Return a block in which only torch's kernels run."""
    return meta.dialect.only("torch")  # type: ignore[no-any-return]


def network(seed: int = 0) -> Model:
    """Return a network from (n, FEATURES) to (n, CLASSES)."""
    meta.random.seed(seed)
    return Sequential(Linear(FEATURES, 6), BatchNorm(6), ReLU(), Dropout(0.25), Linear(6, CLASSES))


def loss(scores: Any, labels: Any) -> Any:
    """Return the mean cross entropy."""
    return op.cross_entropy(scores, labels)


def optimizer() -> Any:
    """Return the optimizer, a function of a model."""
    return with_sgd(0.1, 0.9)


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return inputs (SAMPLES, FEATURES) and labels (SAMPLES,) that can be learnt."""
    generator = np.random.default_rng(7)
    labels = generator.integers(0, CLASSES, SAMPLES)
    x = generator.normal(size=(SAMPLES, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[labels]
    return x.astype("float32"), labels


class PythonShuffled:
    """Data of a user who shuffles with Python's generator, and augments with numpy's."""

    def __iter__(self) -> Iterator[Any]:
        x, y = arrays()
        order = list(range(SAMPLES))
        random.shuffle(order)
        for start in range(0, SAMPLES, SIZE):
            chosen = order[start : start + SIZE]
            noise = np.random.normal(size=(len(chosen), FEATURES)).astype("float32")
            yield x[chosen] + noise / 10, y[chosen]


class Positioned:
    """Data that keep their position themselves, as torchdata's loaders do."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(3)
        self._order: tuple[int, ...] | None = None  # of what is left of an epoch that has begun

    def __iter__(self) -> Iterator[Any]:
        x, y = arrays()
        if self._order is None:
            self._order = tuple(self._generator.permutation(SAMPLES).tolist())
        while self._order:
            chosen, self._order = list(self._order[:SIZE]), self._order[SIZE:]
            yield x[chosen], y[chosen]
        self._order = None

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.bit_generator.state, "order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
        self._order = state["order"]


def loader(**options: Any) -> DataLoader[Any]:
    """Return a torch DataLoader that shuffles."""
    x, y = map(torch.from_numpy, arrays())
    return DataLoader(TensorDataset(x, y), batch_size=SIZE, shuffle=True, **options)


def own_generator() -> DataLoader[Any]:
    """Return a DataLoader with a generator of its own."""
    return loader(generator=torch.Generator().manual_seed(5))


DATA = {
    "batches": lambda: Batches(*arrays(), SIZE, seed=2),
    "loader": loader,
    "loader with a generator": own_generator,
    "Python's generator": PythonShuffled,
    "with a position": Positioned,
}
"""Shuffled data of every kind that can be resumed."""


def held_out() -> Batches:
    """Return the data in their order."""
    return Batches(*arrays(), SIZE, shuffle=False)


def train(model: Model | None = None, **options: Any) -> Record:
    """Call `fit` with what is not stated."""
    given = {"loss": loss, "data": DATA["batches"](), "optimizer": optimizer()}
    given = {name: options.pop(name, value) for name, value in given.items()}
    options.setdefault("executor", "interpreter")
    return fit(model or network(), **given, **options)


def weights(model: Model) -> dict[str, np.ndarray[Any, Any]]:
    """Return all arrays of a model by name."""
    return {name: array.numpy() for name, array in model.state().items()}


def same(a: Model, b: Model) -> bool:
    """Whether two models have the same arrays, bit for bit."""
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)
