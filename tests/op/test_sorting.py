"""What calls of the operators that order elements take, beside what programs have: NumPy's and
torch's arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError
from meta.dialect import only

X = np.array([[3.0, np.nan, 1.0, 3.0], [0.0, -0.0, 5.0, -1.0]])
T = torch.tensor(X)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_orders_are_those_of_torch(axis: int, descending: bool) -> None:
    wanted = T.sort(dim=axis, descending=descending, stable=True)
    found = meta.sort(X, axis=axis, descending=descending, stable=False)
    np.testing.assert_array_equal(found.numpy(), wanted.values.numpy())
    order = meta.argsort(X, axis=axis, descending=descending)
    assert order.dtype == "int64"
    np.testing.assert_array_equal(order.numpy(), wanted.indices.numpy())


@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_them(largest: bool) -> None:
    values, indices = meta.topk(X, 3, largest=largest, sorted=False)
    wanted = T.sort(dim=-1, descending=largest, stable=True)
    np.testing.assert_array_equal(values.numpy(), wanted.values[:, :3].numpy())
    np.testing.assert_array_equal(indices.numpy(), wanted.indices[:, :3].numpy())


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches_are_those_of_numpy(side: Any) -> None:
    ladder, sorter = np.array([2.0, 0.0, 1.0, 1.0]), np.array([1, 2, 3, 0])
    values = np.array([[-1.0, 1.0], [2.0, 3.0]])
    found = meta.searchsorted(ladder, values, side=side, sorter=sorter)
    np.testing.assert_array_equal(found, np.searchsorted(ladder, values, side, sorter))


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: meta.argsort(X, 0, True, "int64"), "stable must be True or False"),
    (lambda: meta.topk(X, 1, 1, "indices"), "'largest' does not fit"),
    (lambda: meta.topk(X, 1, sorted=None), "sorted must be True or False"),
    (lambda: meta.topk(X, 1, ret_type="values"), "there is no argument 'ret_type'"),
    (lambda: meta.searchsorted(X[0], X, True), 'side="right" for right=True'),
    (lambda: meta.searchsorted(X, X, "left", [0, 1]), "a sorter sorts a vector"),
    (lambda: meta.sort(X, dim=0), "the argument is called 'axis'"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_makes_no_sense_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("ties", ["none", "chosen", "last", "NaN", "zeros"])
def test_few_of_many_are_those_of_a_stable_sort(ties: str, largest: bool) -> None:
    x = np.random.default_rng(0).permutation(np.arange(600, dtype="float32")).reshape(3, 200)
    order = np.argsort(-x if largest else x, axis=1)
    if ties != "none":
        first, second = {"chosen": (1, 2), "last": (4, 5)}.get(ties, (3, 150))
        x[1, order[1, first]] = {"NaN": np.nan, "zeros": 0.0}.get(ties, x[1, order[1, second]])
    if ties == "zeros":
        x -= x[1, order[1, 3]] + (700 if largest else -700)
        x[1, [7, 90]] = 0.0, -0.0
    with only("torch"):
        values, indices = meta.topk(meta.array(x), 5, largest=largest)
    expected = torch.sort(torch.from_numpy(x), dim=1, descending=largest, stable=True)
    assert np.array_equal(indices.numpy(), expected.indices[:, :5].numpy())
    assert np.array_equal(values.numpy(), expected.values[:, :5].numpy(), equal_nan=True)


@pytest.mark.parametrize(
    "low, high", [(-(2**63), 2**63 - 1), (-5, 5), (2**62, 2**62 + 9000), (3, 4)]
)
def test_many_integers_are_sorted_stably(low: int, high: int) -> None:
    x = np.random.default_rng(1).integers(low, high, 5001, endpoint=True)
    for given in (x, np.concatenate([x, x[:7]]), np.concatenate([x, x[:7] ^ 1])):
        with only("torch"):
            found = meta.argsort(meta.array(given)).numpy()
        assert np.array_equal(found, np.argsort(given, kind="stable"))
