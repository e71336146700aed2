"""``x[index]`` and ``a @ b`` mean what numpy means by them; gradients are torch's."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta.base.errors import IndexOutOfRange, MetaError, TraceError, TypeInferError
from meta.dialect import prefer
from meta.model import trace
from meta.testing import check

X = np.arange(2 * 3 * 4, dtype=np.float64).reshape(2, 3, 4)
R0, R1 = np.array([1, 0, -1]), np.array([[0, 2, -3]])
MASK = np.arange(12).reshape(3, 4) % 3 == 0

BASIC: list[Any] = [
    0,
    -1,
    (1, 2),
    (1, 2, 3),
    np.int32(1),
    ...,
    (),
    None,
    (None, 0, None, ..., None),
    slice(None),
    slice(1, 1),
    (slice(None), slice(None, None, -1)),
    (..., slice(3, None, -2)),
    (slice(5, -9, -1), 1, slice(-3, 99)),
    (slice(None), slice(9, 2), None),
]
ARRAYS: list[Any] = [
    [0, 1, 1],
    [],
    R0,
    R0.tolist(),
    np.array(-1),
    (slice(None), R0),
    (..., R0),
    (R0, R1),
    (slice(None), R0, R1),
    (R0, slice(None), R1),
    (0, slice(None), R0),
    (slice(None), 0, R0),
    (R0, 0),
    (R0, None, R1),
    (None, R0, ..., None),
    (slice(None, None, -1), R0, slice(0, 3, 2)),
    (R0, R0, R0),
    (slice(None), R0, ..., 1),
    R0.astype(np.int8),
]
MASKS: list[Any] = [
    np.array([True, False]),
    [True, False],
    X > 5,
    (slice(None), MASK),
    (0, MASK),
    (1, np.array([True, False, True]), slice(1, 3)),
    (np.array([True, True]), np.array([0, 2])),
]


def torch_index(index: Any) -> Any:
    """Return the flat positions that numpy picks (torch knows no negative step)."""
    return torch.as_tensor(np.array(np.arange(X.size).reshape(X.shape)[index]))


@pytest.mark.parametrize("index", BASIC + ARRAYS + MASKS, ids=str)
def test_getitem_is_numpys(index: Any) -> None:
    found, expected = meta.array(X)[index], X[index]
    assert found.dtype == "float64"
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("index", BASIC + ARRAYS + MASKS, ids=str)
def test_the_gradient_of_getitem(index: Any) -> None:
    ours = meta.array(X)
    ours.requires_grad = True
    y = ours[index]
    dy = np.random.default_rng(0).normal(size=y.shape)
    y.backward(dy)
    theirs = torch.from_numpy(X).requires_grad_()
    theirs.flatten()[torch_index(index)].backward(torch.from_numpy(dy))
    if ours.grad is None:
        assert y.size == 0
    else:
        check(ours.grad, theirs.grad)


@pytest.mark.parametrize("index", BASIC + ARRAYS, ids=str)
def test_getitem_can_be_traced(index: Any) -> None:
    traced = trace(lambda x: x[index] if index is not ... else x[index] + 0.0)
    np.testing.assert_array_equal(traced(meta.array(X)).numpy(), X[index])


def test_index_arrays_can_be_traced() -> None:
    x, i, j = meta.array(X), meta.array(R0), meta.array(R1)
    check(trace(lambda x, i: x[:, i])(x, i), X[:, R0])
    check(trace(lambda x, i: x[0, :, i])(x, i), X[0, :, R0])
    check(trace(lambda x, i, j: x[i, :, j])(x, i, j), X[R0, :, R1])
    check(trace(lambda x, i, j: x[i, j])(x, i, j), X[R0, R1])
    check(trace(lambda x, i: x[i, R1])(x, i), X[R0, R1])


@pytest.mark.parametrize(
    "index", [meta.array(R0), torch.from_numpy(R0), meta.array(R0)[0]], ids=str
)
def test_index_arrays_of_every_kind(index: Any) -> None:
    check(meta.array(X)[index], X[np.asarray(index)])


def test_a_traced_mask_is_refused_with_a_cure() -> None:
    with pytest.raises(TraceError, match="where"):
        trace(lambda x, mask: x[mask])(meta.array(X), meta.array(X > 3))


@pytest.mark.parametrize(
    "index",
    [2, -3, (0, 3), [0, 2], np.array([-3]), (0, 0, 0, 0), np.array([True]), X[0] > 3],
    ids=str,
)
def test_out_of_range(index: Any) -> None:
    with pytest.raises(IndexOutOfRange) as error:
        meta.array(X)[index]
    assert isinstance(error.value, IndexError)
    assert isinstance(error.value, MetaError)


@pytest.mark.parametrize(
    "index", [1.0, "a", True, (..., ...), [0.5], slice(0, 1, 0), slice(0, "a")], ids=str
)
def test_what_is_no_index(index: Any) -> None:
    with pytest.raises(TypeInferError):
        meta.array(X)[index]


def test_iteration_ends() -> None:
    rows = list(meta.array(X))
    assert len(rows) == len(X)
    check(rows[1], X[1])


@st.composite
def basic_indices(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """Draw a shape and a valid basic index of it."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    bound = st.none() | st.integers(-6, 6)
    index: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        cut = st.builds(slice, bound, bound, st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3]))
        index.append(draw(cut | st.integers(-extent, extent - 1) if extent else cut))
    for extra in draw(st.lists(st.just(None), max_size=2)):
        index.insert(draw(st.integers(0, len(index))), extra)
    if draw(st.booleans()):
        index.append(...)
    return shape, tuple(index)


@settings(max_examples=150)
@given(basic_indices())
def test_basic_indexing_is_numpys(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with prefer("torch"):  # nothing is to be compiled for every shape
        found = meta.array(x)[index]
    try:
        expected = x[index]
    except IndexError:
        pytest.fail("the drawn index is not valid")
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)


PRODUCTS = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((5, 6, 2, 3), (1, 1, 3, 4)),
    ((0, 2, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((2, 1, 2, 0), (3, 0, 4)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_matmul_is_numpys(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in (left, right))
    ours = [meta.array(t) for t in (a, b)]
    for t in (*ours, a, b):
        t.requires_grad = True
    y, expected = ours[0] @ ours[1], a @ b
    check(y, expected.detach(), 1e-9, 1e-9)
    dy = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    y.backward(dy)
    expected.backward(dy)
    for t, torch_t in zip(ours, (a, b), strict=True):
        check(t.grad, torch_t.grad, 1e-9, 1e-9)
    check(trace(lambda a, b: a @ b)(*ours), expected.detach(), 1e-9, 1e-9)


def test_matmul_with_foreign_arrays() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    check(a @ meta.array(b), a @ b)
    check(meta.array(a) @ b, a @ b)
    with pytest.raises(TypeInferError):
        meta.array(a) @ meta.array(1.0)
    with pytest.raises(TypeInferError, match="differ"):
        meta.array(a) @ meta.array(a)


def test_one_integer_is_a_copy_for_each_dtype_and_layout() -> None:
    for dtype in meta.base.dtype.DTYPES:
        for x in (meta.array(np.arange(6).reshape(3, 2), dtype), meta.array(np.arange(3), dtype)):
            for i in range(-3, 3):
                row = x[i]
                assert (row.dtype, row.shape) == (dtype, x.shape[1:])
                assert np.array_equal(row.numpy(), x.numpy()[i])
    values = torch.arange(6.0).reshape(2, 3)
    strided = meta.ndarray(values.T)
    row = strided[1]
    values.zero_()
    assert row.numpy().tolist() == [1.0, 4.0] and row.strides == (1,)
    with pytest.raises(IndexOutOfRange, match="index 3 is out of range for axis 0"):
        strided[3]
    with pytest.raises(IndexOutOfRange, match="too many"):
        meta.array(1.0)[0]


def test_one_integer_of_an_array_with_a_gradient() -> None:
    x = meta.array([[1.0, 2.0], [3.0, 4.0]])
    x.requires_grad = True
    x[1].backward([1.0, 2.0])
    assert x.grad.numpy().tolist() == [[0.0, 0.0], [1.0, 2.0]]
