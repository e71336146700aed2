"""torch.utils.data over our arrays: the batches are those of torch's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

import meta

X = np.arange(30, dtype=np.float32).reshape(10, 3)
Y = np.arange(10)


class Rows:
    """A data set of dicts, as those of transformers."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i], "labels": (self.y[i], i)}


def flat(batch: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(batch, dict):
        return flat(list(batch.values()))
    if isinstance(batch, list | tuple):
        return [a for part in batch for a in flat(part)]
    return [np.asarray(batch)]


@pytest.mark.parametrize("kind", [TensorDataset, Rows])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}], ids=str)
def test_batches(kind: Any, options: dict[str, Any]) -> None:
    runs = []
    for make in (torch.tensor, meta.array):
        torch.manual_seed(0)
        runs.append(list(DataLoader(kind(make(X), make(Y)), batch_size=4, **options)))
    theirs, ours = runs
    assert len(theirs) == len(ours)
    for expected, found in zip(theirs, ours, strict=True):
        pairs = list(zip(flat(expected), flat(found), strict=True))
        assert pairs and all((a == b).all() and a.dtype == b.dtype for a, b in pairs)
    batch = ours[0][0] if kind is TensorDataset else ours[0]["x"]
    assert type(batch) is meta.ndarray and batch.shape == (4, 3)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes(context: str) -> None:
    data = TensorDataset(meta.array(X), meta.array(Y))  # type: ignore[arg-type]
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=context)
    found = list(loader)
    assert [type(x) for x, _ in found] == [meta.ndarray] * 3
    np.testing.assert_array_equal(np.concatenate([x.numpy() for x, _ in found]), X)
    np.testing.assert_array_equal(np.concatenate([y.numpy() for _, y in found]), Y)


def test_rows_of_other_shapes_are_an_error() -> None:
    with pytest.raises(meta.MetaError, match="stack"):
        default_collate([meta.ones(2), meta.ones(3)])


def test_a_model_trains_on_them() -> None:
    data = TensorDataset(meta.array(X / 30), meta.array(Y % 2))  # type: ignore[arg-type]
    meta.random.seed(0)
    model = meta.model.Linear(3, 2)
    optimizer = meta.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(20):
        for x, y in DataLoader(data, batch_size=5):
            optimizer.zero_grad()
            loss = meta.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
