"""Functions that write at indices and masks: torch's, in float64, with torch's gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import IndexOutOfRange, MetaError
from meta.model import trace

G = torch.Generator().manual_seed(0)
X = torch.rand(4, 3, generator=G, dtype=torch.float64)
SRC = torch.rand(4, 3, generator=G, dtype=torch.float64) + 0.5
ROWS = torch.rand(5, 3, generator=G, dtype=torch.float64) + 0.5
AT = torch.tensor([[0, 2, 1], [3, 2, 1], [0, 0, 1], [1, 2, 3]])
WHOLE = meta.array(torch.arange(6).view(3, 2))
INDEX = torch.tensor([3, 0, 0, 2, 3])
APART = torch.tensor([2, 0, 1])
MASK = torch.tensor([[True, False, True], [False, True, True], [False] * 3, [True] * 3])
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")

Both = tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Both] = {
    **{
        f"scatter_reduce {how} {own}": (
            lambda x, i, s, how=how, own=own: meta.scatter_reduce(x, 0, i, s, how, own),
            lambda x, i, s, how=how, own=own: x.scatter_reduce(0, i, s, how, include_self=own),
            (X, AT, SRC),
        )
        for how in REDUCTIONS
        for own in (True, False)
    },
    **{
        f"index_reduce {how} {own}": (
            lambda x, i, s, how=how, own=own: meta.index_reduce(x, 0, i, s, how, own),
            lambda x, i, s, how=how, own=own: x.index_reduce(0, i, s, how, include_self=own),
            (X, INDEX, ROWS),
        )
        for how in REDUCTIONS[1:]
        for own in (True, False)
    },
    "scatter of a number": (
        lambda x, i: meta.scatter(x, 1, i, 2.5),
        lambda x, i: x.scatter(1, i, 2.5),
        (X, AT[:, :1] % 3),
    ),
    "scatter_add of a number": (
        lambda x, i: meta.scatter_add(x, 1, i, 2),
        lambda x, i: x.scatter_add(1, i, torch.full(i.shape, 2.0, dtype=x.dtype)),
        (X, AT % 3),
    ),
    "index_add": (
        lambda x, i, s: meta.index_add(x, 0, i, s, -2.0),
        lambda x, i, s: x.index_add(0, i, s, alpha=-2.0),
        (X, INDEX, ROWS),
    ),
    "index_copy": (
        lambda x, i, s: meta.index_copy(x, -1, i, s),
        lambda x, i, s: x.index_copy(-1, i, s),
        (X, APART, SRC),
    ),
    "index_fill": (
        lambda x, i, v: meta.index_fill(x, 0, i, v),
        lambda x, i, v: x.index_fill(0, i, v),
        (X, INDEX, torch.tensor(7.5, dtype=torch.float64)),
    ),
    "masked_scatter": (
        lambda x, m, s: meta.masked_scatter(x, m, s),
        lambda x, m, s: x.masked_scatter(m, s),
        (X, MASK, ROWS),
    ),
    "masked_scatter of a column": (
        lambda x, m, s: meta.masked_scatter(x, m, s),
        lambda x, m, s: x.masked_scatter(m, s),
        (X, MASK[:, :1], ROWS),
    ),
    "nothing": (
        lambda x, i, s: meta.index_add(x, 0, i, s),
        lambda x, i, s: x.index_add(0, i, s),
        (X, INDEX[:0], ROWS[:0]),
    ),
}


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # of torch: it is in beta
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str) -> None:
    ours, theirs, tensors = CASES[name]
    own = [meta.array(t.numpy().copy()) for t in tensors]
    their = [t.clone() for t in tensors]
    floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]
    for i in floats:
        own[i].requires_grad = True
        their[i].requires_grad_()
    found, wanted = ours(*own), theirs(*their)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-12)
    dy = torch.rand(wanted.shape, generator=G, dtype=torch.float64)
    found.backward(meta.array(dy.numpy()))
    wanted.backward(dy)
    for i in floats:
        np.testing.assert_allclose(own[i].grad.numpy(), their[i].grad.numpy(), rtol=1e-10)
    plain = [meta.array(t.numpy().copy()) for t in tensors]
    traced = trace(ours)
    for run in (traced, meta.vm.compile(traced, *plain)):
        np.testing.assert_allclose(run(*plain).numpy(), wanted.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "int64", "uint8"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("how", REDUCTIONS)
def test_other_dtypes(how: str, own: bool, dtype: str) -> None:
    x = torch.tensor([[5, 3, 7], [2, 9, 4]]).to(getattr(torch, dtype))
    src = torch.tensor([[1, 2, 3], [3, 2, 2]]).to(x.dtype)
    at = torch.tensor([[0, 0, 1], [1, 2, 2]])
    found = meta.scatter_reduce(meta.array(x), 1, meta.array(at), meta.array(src), how, own)
    wanted = x.scatter_reduce(1, at, src, how, include_self=own)
    assert found.dtype == dtype
    torch.testing.assert_close(found.torch(), wanted, rtol=0.01, atol=0)


def test_indices_that_count_from_the_end() -> None:
    x, rows = meta.array(X.numpy()), meta.array(ROWS[:2].numpy())
    back, front = meta.array([-1, -4]), meta.array([3, 0])
    for write in (meta.index_add, meta.index_copy):
        np.testing.assert_array_equal(write(x, 0, back, rows), write(x, 0, front, rows))
    np.testing.assert_array_equal(meta.index_fill(x, 0, back, 1), meta.index_fill(x, 0, front, 1))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("values", [7.0, np.array([[1.0], [2.0]])])
def test_put_along_axis_is_numpys(axis: int, values: Any) -> None:
    x, at = np.arange(6.0).reshape(2, 3), np.array([[1], [-2]])
    at = at[:1] if axis == 0 else at
    values = values[:1] if axis == 0 and not isinstance(values, float) else values
    wanted = x.copy()
    np.put_along_axis(wanted, at, values, axis)
    found = meta.put_along_axis(x, at, values, axis)
    np.testing.assert_array_equal(found.numpy(), wanted)
    read = meta.take_along_axis(x, at, axis)
    np.testing.assert_array_equal(read.numpy(), np.take_along_axis(x, at, axis))


def test_masked_select() -> None:
    x = meta.array(X.numpy())
    x.requires_grad = True
    y = meta.masked_select(x, MASK.numpy())
    np.testing.assert_array_equal(y.detach().numpy(), X[MASK].numpy())
    meta.sum(y).backward()
    np.testing.assert_array_equal(x.grad.numpy(), MASK.double().numpy())
    assert meta.masked_select(np.float32(2), np.array([True, False, True])).tolist() == [2, 2]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: meta.scatter_reduce(X, 0, AT, SRC, "max"), "unknown reduction"),
    (lambda: meta.scatter_reduce(MASK, 0, AT, MASK, "sum"), "bool has no order"),
    (lambda: meta.scatter(X, 0, AT, SRC, reduce="add"), "there is no argument 'reduce'"),
    (lambda: meta.scatter(meta.array([1]), 0, meta.array([0]), 0.5), "does not fit"),
    (lambda: meta.index_add(X, 0, INDEX, SRC), "source does not fit"),
    (lambda: meta.index_add(X, 0, AT, SRC), "index must be a vector"),
    (
        lambda: meta.index_add(WHOLE, 0, torch.tensor([0]), WHOLE[:1], 0.5),
        "a multiple of integers that is no integer",
    ),
    (lambda: meta.index_copy(X, 2, INDEX, ROWS), "axis 2 is out of range"),
    (lambda: meta.index_fill(X, 0, INDEX, SRC), "value is no number"),
    (lambda: meta.put_along_axis(X, INDEX, 1.0, 0), "the indices do not fit x"),
    (lambda: meta.masked_scatter(X, AT, SRC), "mask must be bool"),
    (lambda: meta.masked_scatter(X, MASK, SRC.float()), "differ in dtype"),
    (lambda: meta.masked_select(X, AT), "mask must be bool"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_makes_no_sense_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(MetaError, match=text):
        call()


def test_indices_out_of_range_are_errors() -> None:
    for call in (
        lambda: meta.index_add(X, 0, torch.tensor([4]), ROWS[:1]),
        lambda: meta.index_copy(X, 0, torch.tensor([-5]), ROWS[:1]),
        lambda: meta.put_along_axis(X, torch.tensor([[4, 0, 0]]), 1.0, 0),
        lambda: meta.scatter_reduce(X, 0, torch.tensor([[-1]]), SRC, "mean"),
        lambda: meta.masked_scatter(X, MASK, ROWS[:1]),
    ):
        with pytest.raises(IndexOutOfRange):
            call()


def test_index_add_of_integers_takes_a_whole_float() -> None:
    found = meta.index_add(WHOLE, 0, torch.tensor([1]), WHOLE[:1], 2.0)
    expected = WHOLE.torch().index_add(0, torch.tensor([1]), WHOLE.torch()[:1], alpha=2)
    assert torch.equal(found.torch(), expected)


@pytest.mark.parametrize("alpha", [False, True])
def test_index_add_of_booleans_takes_alpha(alpha: bool) -> None:
    x, rows = torch.tensor([[True, False], [False, False]]), torch.ones(1, 2, dtype=torch.bool)
    found = meta.index_add(x, 0, torch.tensor([1]), rows, alpha)
    assert found.torch().equal(x.index_add(0, torch.tensor([1]), rows, alpha=alpha))
