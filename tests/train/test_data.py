"""Data of every kind, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
)

import meta
from meta import op
from meta.base.device import CPU
from meta.base.errors import ArgumentError, FormatError, MetaError
from meta.model import Linear, Model, trace
from meta.optim import with_sgd
from meta.train import Batches, evaluate, fit
from meta.train.batch import read_batch
from meta.train.data import Feed
from tests.train.problem import CLASSES, FEATURES, SAMPLES, SIZE, arrays, kernels, loss, network

X, Y = arrays()


def pairs(convert: Callable[[Any], Any]) -> list[Any]:
    """Return batches of converted arrays."""
    return [(convert(X[i : i + SIZE]), convert(Y[i : i + SIZE])) for i in range(0, SAMPLES, SIZE)]


class Iterable:
    def __iter__(self) -> Iterator[Any]:
        return iter(pairs(np.asarray))


class Sequence:
    def __len__(self) -> int:
        return len(pairs(np.asarray))

    def __getitem__(self, index: int) -> Any:
        return pairs(np.asarray)[index]


KINDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: pairs(np.asarray),
    "torch": lambda: pairs(torch.as_tensor),
    "meta": lambda: pairs(meta.array),
    "tuples of arrays": lambda: [((x,), (y,)) for x, y in pairs(np.asarray)],
    "lists": lambda: [[x, y] for x, y in pairs(np.asarray)],
    "dicts": lambda: [({"x": x}, {"labels": y}) for x, y in pairs(np.asarray)],
    "iterable": Iterable,
    "sequence": Sequence,
    "batches": lambda: Batches(X, torch.as_tensor(Y), SIZE, shuffle=False),
    "loader": lambda: DataLoader(
        TensorDataset(torch.as_tensor(X), torch.as_tensor(Y)), batch_size=SIZE
    ),
    "generator": lambda: (pair for _ in range(2) for pair in pairs(np.asarray)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_data_of_every_kind_train_alike(kind: str) -> None:
    found = []
    for data in (KINDS["numpy"](), KINDS[kind]()):
        meta.random.seed(0)
        model = Linear(FEATURES, CLASSES)
        found.append(fit(model, loss, data, with_sgd(0.1), steps=7, executor="interpreter").losses)
    assert found[0] == found[1]


def test_several_inputs_and_no_targets() -> None:
    class Distance(Model):
        def build(self) -> None:
            self.linear = Linear(FEATURES, 2)

        @trace
        def forward(self, a: Any, b: Any) -> Any:
            return op.subtract(self.linear(a), self.linear(b))

    data = [((X[:4], X[4:8]), None), ({"a": X[:4], "b": X[4:8]}, ())]
    record = fit(
        Distance(),
        lambda difference: op.mean(op.multiply(difference, difference)),
        data,
        with_sgd(0.0),
        steps=2,
        executor="interpreter",
    )
    assert record.losses[0] == record.losses[1] > 0


@pytest.mark.parametrize("executor", ["interpreter", "vm"])
def test_a_smaller_last_batch_counts_as_what_it_is(executor: str) -> None:
    model = Linear(FEATURES, CLASSES)
    whole = evaluate(model, loss, [(X, Y)], executor=executor)
    parts = evaluate(model, loss, Batches(X, Y, 12, shuffle=False), executor=executor)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    record = fit(model, loss, Batches(X, Y, 12), with_sgd(0.1), epochs=1, executor=executor)
    assert record.step == 4 and record.samples == SAMPLES


def test_batches_cover_all_samples_in_an_order_of_each_epoch() -> None:
    data = Batches(np.arange(10), torch.arange(10) * 2, 3, seed=4)
    assert len(data) == 4
    epochs = [[(x.tolist(), y.tolist()) for x, y in data] for _ in range(2)]
    orders = [[i for x, _ in epoch for i in x] for epoch in epochs]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert all(y == [2 * i for i in x] for epoch in epochs for x, y in epoch)
    data.set_epoch(0)
    assert [x.tolist() for x, _ in data] == [x for x, _ in epochs[0]]
    other = Batches(np.arange(10), np.arange(10), 3, seed=5)
    assert [x.tolist() for x, _ in other] != [x for x, _ in epochs[0]]
    dropped = Batches(np.arange(10), np.arange(10), 3, seed=4, drop_last=True)
    assert [len(x) for x, _ in dropped] == [3, 3, 3] and len(dropped) == 3


def test_the_sampler_of_a_loader_is_told_the_epoch() -> None:
    data = TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    feed = Feed(DataLoader(data, batch_size=SIZE, sampler=sampler), CPU)
    first = [feed.take() for _ in range(SAMPLES // SIZE + 1)]
    assert first[-1] is None and feed.epoch == 1
    feed.take()
    assert sampler.epoch == 1


def test_a_sampler_of_batches_has_an_epoch_and_a_generator_of_its_own() -> None:
    data = TensorDataset(*map(torch.from_numpy, arrays()))
    generator = torch.Generator().manual_seed(3)
    batches = BatchSampler(RandomSampler(data, generator=generator), SIZE, drop_last=False)
    batches.set_epoch = lambda epoch: seen.append(epoch)  # type: ignore[attr-defined]
    seen: list[int] = []

    def labels(feed: Feed) -> list[int]:
        batch = feed.take()
        return [] if batch is None else batch.targets[0].numpy().tolist()

    feed = Feed(DataLoader(data, batch_sampler=batches), CPU)
    labels(feed)
    state = feed.state()
    expected = [labels(feed) for _ in range(4)]
    generator.manual_seed(99)
    again = Feed(DataLoader(data, batch_sampler=batches), CPU)
    again.load_state(state)
    assert [labels(again) for _ in range(4)] == expected and set(seen) == {0}


def test_evaluating_leaves_the_generator_of_the_data_alone() -> None:
    data = TensorDataset(*map(torch.from_numpy, arrays()))
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(data, SIZE, shuffle=True, generator=generator)
    before = generator.get_state()
    with kernels():
        evaluate(network(), loss, loader, executor="interpreter")
    assert torch.equal(generator.get_state(), before)


def test_an_iterator_must_last() -> None:
    with pytest.raises(ArgumentError, match="come to their end"):
        fit(
            Linear(FEATURES, CLASSES),
            loss,
            iter(pairs(np.asarray)),
            with_sgd(0.1),
            steps=SAMPLES // SIZE + 1,
            executor="interpreter",
        )


def test_one_epoch_of_an_iterator() -> None:
    model = Linear(FEATURES, CLASSES)
    record = fit(model, loss, iter(pairs(np.asarray)), with_sgd(0.1), epochs=1)
    assert record.step == SAMPLES // SIZE


def test_an_error_in_the_data_says_where() -> None:
    def broken() -> Iterator[Any]:
        yield from pairs(np.asarray)[:2]
        raise ZeroDivisionError("in a transform")

    with pytest.raises(ZeroDivisionError, match="in a transform") as caught:
        fit(Linear(FEATURES, CLASSES), loss, broken(), with_sgd(0.1), steps=9)
    notes = getattr(caught.value, "__notes__", ["while batch 2 of epoch 0 was read"])
    assert notes == ["while batch 2 of epoch 0 was read"]


def test_other_data_than_at_the_checkpoint(tmp_path: Any) -> None:
    def train(data: Any, steps: int) -> None:
        model = Linear(FEATURES, CLASSES)
        fit(model, loss, data, with_sgd(0.1), steps=steps, checkpoint=tmp_path)

    train(pairs(np.asarray), 4)
    with pytest.raises(FormatError, match="not the data that the checkpoint was made with"):
        train(pairs(np.asarray)[:2], 9)


BATCHES: dict[str, tuple[Any, str]] = {
    "an array": (X, "a batch is a pair"),
    "three": ((X, X, Y), "a batch is a pair.*\n.*\n.*several inputs are a tuple"),
    "numbers": ((X, 3), "the targets of a batch hold what is no array"),
    "text": (("x", Y), "the inputs of a batch hold what is no array"),
    "no inputs": (((), Y), "the inputs of a batch hold no array"),
    "None": ((None, Y), "the inputs of a batch hold what is no array"),
    "inner numbers": (((X, [1, 2]), Y), "the inputs of a batch hold what is no array"),
    "objects": ((np.array([object()]), Y), "cannot become an array"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_what_is_no_batch(name: str) -> None:
    item, message = BATCHES[name]
    with pytest.raises(MetaError, match=message.replace(".*\n", r"(?s:.*)")):
        read_batch(item)
    with pytest.raises(MetaError) as caught:
        Feed([item], CPU).take()
    assert "while batch 0 of epoch 0 was read" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Feed(3, CPU), "data must be iterable"),  # type: ignore[arg-type]
        (lambda: Feed([], CPU).take(), "the data have no batch in epoch 0"),
        (lambda: Batches(X, Y[:-1], 4), "arrays of one length"),
        (lambda: Batches((), (), 4), "no array"),
        (lambda: Batches(X, Y, 0), "no batch of this size"),
        (lambda: Batches(X, Y, 41, drop_last=True), "no batch of this size"),
        (lambda: Batches(X, np.float32(1), 4), "the targets of a batch hold what is no array"),
    ],
)
def test_errors(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
