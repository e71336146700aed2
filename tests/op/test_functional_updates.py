"""``x.at[index]``: what numpy's ``ufunc.at`` does, eager, traced and compiled, with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta.base.errors import (
    GradientError,
    IndexOutOfRange,
    NumberOutOfRange,
    TraceError,
    TypeInferError,
)
from meta.model import trace
from tests.op.test_indexing import ARRAYS, BASIC, MASKS, R0, R1, X

METHODS: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "min": np.minimum,
    "max": np.maximum,
}
# The methods on each index once, and all of them on these.
SEVERAL: list[Any] = [
    0,
    (..., slice(3, None, -2)),
    [0, 1, 1],
    (0, slice(None), R0),
    (R0, slice(None), R1),
    (None, R0, ..., None),
]


def base(dtype: str) -> np.ndarray[Any, Any]:
    return np.asarray(X % 5 + 1).astype(dtype)


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    numbers = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) % 3 + 1
    return np.asarray(numbers).astype(dtype)


def expected(name: str, index: Any, value: Any, dtype: str) -> np.ndarray[Any, Any]:
    flat, places = base(dtype).reshape(-1), np.arange(X.size).reshape(X.shape)[index]
    value = np.broadcast_to(value, places.shape)
    if name == "set":
        flat[places] = value
    else:
        METHODS[name].at(flat, places, value)
    return flat.reshape(X.shape)


def compare(name: str, index: Any, dtype: str, *, compiled: bool) -> None:
    want_shape = X[index].shape
    for shape in dict.fromkeys((want_shape, want_shape[-1:], ())):
        value = values(shape, dtype)
        want = expected(name, index, value, dtype)
        x, v = meta.array(base(dtype)), meta.array(value)
        model = trace(lambda x, v: getattr(x.at[index], name)(v))
        found = [getattr(x.at[index], name)(v), getattr(x.at[index], name)(value), model(x, v)]
        if compiled:
            found.append(meta.vm.compile(model, x, v)(x, v))
        for y in found:
            assert (y.dtype, y.shape) == (dtype, X.shape)
            np.testing.assert_allclose(y.numpy(), want, rtol=1e-6)
        np.testing.assert_array_equal(x.numpy(), base(dtype))  # is not written


@pytest.mark.parametrize("index", BASIC + ARRAYS + MASKS, ids=str)
@pytest.mark.parametrize("name", ["set", "add"])
def test_every_index(name: str, index: Any) -> None:
    compare(name, index, "float64", compiled=False)


@pytest.mark.product
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("name", ["set", *METHODS])
def test_every_method(name: str, dtype: str) -> None:
    for index in SEVERAL:
        if name == "divide" and dtype == "int64":
            with pytest.raises(TypeInferError, match="quotient"):
                meta.array(base(dtype)).at[index].divide(1)
        else:
            compare(name, index, dtype, compiled=False)


@pytest.mark.product
@pytest.mark.parametrize("name", ["set", *METHODS])
@pytest.mark.parametrize("index", [(slice(None), 1), (R0, slice(None), R1)], ids=str)
def test_compiled(name: str, index: Any) -> None:
    compare(name, index, "float32", compiled=True)


@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "max"])
def test_bools(name: str) -> None:
    x, index = np.array([True, False, False, True]), [0, 1, 1, 3]
    v = np.array([False, True, False, True])
    want = x.copy()
    if name == "set":
        want[index] = v
    else:
        METHODS[name].at(want, index, v)
    for found in (
        getattr(meta.array(x).at[index], name)(v),
        trace(lambda x, v: getattr(x.at[index], name)(v))(meta.array(x), meta.array(v)),
    ):
        assert found.dtype == "bool"
        np.testing.assert_array_equal(found.numpy(), want)
    for wrong in ("subtract", "power"):
        with pytest.raises(TypeInferError):
            getattr(meta.array(x).at[index], wrong)(True)


def test_traced_index_arrays() -> None:
    x, i, j = meta.array(X), meta.array(R0), meta.array(R1)
    want = X.copy()
    np.add.at(want, (R0, slice(None), R1), 2.0)
    model = trace(lambda x, i, j: x.at[i, :, j].add(2.0))
    for found in (model(x, i, j), meta.vm.compile(model, x, i, j)(x, i, j)):
        np.testing.assert_array_equal(found.numpy(), want)
    for k in (meta.array([2]), meta.array([-3])):
        with pytest.raises(IndexOutOfRange):
            trace(lambda x, k: x.at[k, 0].set(1.0))(x, k)
        with pytest.raises(IndexOutOfRange):
            x.at[k].set(1.0)


def test_the_last_of_equal_indices_is_kept() -> None:
    x, v = meta.zeros((3,)), meta.array(np.arange(64, dtype="float32"))
    i = meta.array(np.arange(64) % 3)
    assert x.at[i].set(v).tolist() == [63, 61, 62]
    assert trace(lambda x, i, v: x.at[i].set(v))(x, i, v).tolist() == [63, 61, 62]


@pytest.mark.parametrize("name", ["set", *METHODS])
def test_traced_masks(name: str) -> None:
    x = meta.array(base("float64"))
    for mask, value in ((X > 9, 2.0), (X[:, :, 0] > 5, np.array([1.0, 2.0, 3.0, 4.0]))):
        want = getattr(x.at[mask], name)(value).numpy()
        model = trace(lambda x, m, value=value: getattr(x.at[m], name)(value))
        np.testing.assert_array_equal(model(x, meta.array(mask)).numpy(), want)
    with pytest.raises(TraceError, match="where"):
        trace(lambda x, m: x.at[m].set([1.0, 2.0]))(x, meta.array(X > 9))


def test_get_zero_axes_and_empty() -> None:
    x = meta.array(2.0)
    assert x.at[()].get().item() == 2 and x.at[...].add(1.0).item() == 3
    assert x.at[meta.array(True)].set(5.0).item() == 5
    assert x.at[meta.array(False)].set(5.0).item() == 2
    empty = meta.zeros((0, 3))
    for index in (slice(None), [], (slice(None), 1)):
        assert empty.at[index].set(1.0).shape == (0, 3)
        assert empty.at[index].multiply(1.0).shape == (0, 3)
    assert "at" in dir(x) and "part" in repr(x.at)


@pytest.mark.parametrize("name", ["set", *METHODS])
@pytest.mark.parametrize("index", SEVERAL, ids=str)
def test_gradients_are_slopes(name: str, index: Any) -> None:
    rng = np.random.default_rng(1)
    x = meta.array(X % 7 + 1.5 + rng.uniform(size=X.shape))
    v = meta.array(rng.uniform(1.2, 2.8, size=X[index].shape))
    weight = meta.array(rng.normal(size=X.shape))

    def total(x: Any, v: Any) -> Any:
        return (getattr(x.at[index], name)(v) * weight).sum()

    for a in (x, v):
        a.requires_grad = True
    found = meta.grad.grad(total(x, v), (x, v))
    for which, gradient in enumerate(found):
        direction = rng.normal(size=(x, v)[which].shape)

        def moved(step: float, which: int = which, direction: Any = direction) -> float:
            given = [a.numpy() for a in (x, v)]
            given[which] = given[which] + step * direction
            return float(total(*map(meta.array, given)).item())

        slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
        np.testing.assert_allclose((gradient.numpy() * direction).sum(), slope, 1e-5, 1e-6)


def test_no_gradient_of_what_is_not_masked() -> None:
    x, v = meta.array([-1.0, 4.0]), meta.array(0.5)
    for a in (x, v):
        a.requires_grad = True
    y = trace(lambda x, v: x.at[x > 0].power(v))(x, v)
    assert y.tolist() == [-1, 2]
    dx, dv = meta.grad.grad(y.sum(), (x, v))
    assert dx.tolist() == [1, 0.25] and np.isfinite(dv.item())


def test_what_does_not_fit() -> None:
    x = meta.array([1, 2])
    for value in (1.5, [1.5], meta.array([1.5]), 1j):
        with pytest.raises(TypeInferError, match="does not fit"):
            x.at[0].set(value)
    with pytest.raises(NumberOutOfRange):
        x.astype("uint8").at[0].add(256)
    with pytest.raises(TypeInferError, match="may be beyond"):
        x.astype("uint8").at[0].add(x[0])
    for value in ([1, 2, 3], [[1, 2], [3, 4]]):
        with pytest.raises(TypeInferError, match="broadcast"):
            x.at[:].set(value)
    assert x.at[0].set(True).tolist() == [1, 2]
    half = meta.array([1.0, 2.0], "float16").at[0].add(np.array(0.5))
    assert half.dtype == "float16" and half.tolist() == [1.5, 2]
    with meta.strict_dtypes(), pytest.raises(TypeInferError, match="strict"):
        half.at[0].add(meta.array(0.5))


def test_a_computed_array_is_changed_with_its_gradient() -> None:
    w = meta.array([1.0, 2.0])
    w.requires_grad = True
    y = w * 3.0
    with pytest.raises(GradientError):
        y[0] = 0.0
    y = y.at[0].set(0.0)
    y.sum().backward()
    assert w.grad.tolist() == [0, 3]
