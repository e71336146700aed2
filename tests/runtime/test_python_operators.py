"""What Python's statements and built-in functions do with arrays: ``x += y``, ``round(x)``,
``divmod``, ``in``.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import meta
from meta.base.errors import GradientError, TraceError, TypeInferError
from meta.model import trace

IN_PLACE: list[tuple[Any, Any]] = [
    (operator.iadd, 2.5),
    (operator.isub, 2.5),
    (operator.imul, np.array([1.0, 2.0, 3.0], "float32")),
    (operator.itruediv, 2),
    (operator.ifloordiv, 2),
    (operator.imod, 3),
    (operator.ipow, 2),
]
ON_INTEGERS: list[tuple[Any, Any]] = [
    (operator.iadd, 2),
    (operator.ifloordiv, 2),
    (operator.iand, 6),
    (operator.ior, 6),
    (operator.ixor, 6),
    (operator.ilshift, 1),
    (operator.irshift, 1),
]


class TestInPlace:
    @pytest.mark.parametrize(
        "call, value, dtype",
        [(*c, "float32") for c in IN_PLACE] + [(*c, "int64") for c in ON_INTEGERS],
    )
    def test_as_numpy_and_other_names_keep_the_value(
        self, call: Any, value: Any, dtype: str
    ) -> None:
        numbers = np.arange(6).reshape(2, 3).astype(dtype)
        want = call(numbers.copy(), value)
        x = meta.array(numbers)
        given = meta.array(value) if isinstance(value, np.ndarray) else value
        for found in (call(x, given), trace(lambda x: call(x, given))(x)):
            assert (found.dtype, found.shape) == (dtype, (2, 3))
            np.testing.assert_array_equal(found.numpy(), want)
        np.testing.assert_array_equal(x.numpy(), numbers)

    def test_products_of_matrices(self) -> None:
        x = y = meta.array([[1.0, 2.0], [3.0, 4.0]])
        x @= y
        assert x.tolist() == [[7, 10], [15, 22]] and y.tolist() == [[1, 2], [3, 4]]

    def test_the_dtype_stays(self) -> None:
        for x, value in (
            (meta.array([1, 2]), 1.5),
            (meta.array([1, 2]), meta.array([1.5, 2.5])),
            (meta.array([1, 2], "int32"), meta.array([1, 2])),
            (meta.array([1.0]), 1j),
            (meta.array([True]), 1),
        ):
            for run in (operator.iadd, trace(lambda x, y: operator.iadd(x, y))):
                with pytest.raises(TypeInferError, match="dtype"):
                    run(x, value)
        with pytest.raises(TypeInferError, match="dtype"):
            operator.itruediv(meta.array([1, 2]), 2)
        x = meta.array([1.0, 2.0])
        x += meta.array([0.5, 0.5], "float64")
        assert x.dtype == "float32" and x.tolist() == [1.5, 2.5]

    def test_the_shape_stays(self) -> None:
        x = meta.array([1.0, 2.0])
        for run in (operator.iadd, trace(lambda x, y: operator.iadd(x, y))):
            with pytest.raises(TypeInferError, match="shape"):
                run(x, meta.zeros((3, 2)))

    def test_gradients_pass(self) -> None:
        w = meta.array([1.0, 2.0])
        w.requires_grad = True
        y = w * 1.0
        y += w * 2.0
        y *= y
        y.sum().backward()
        np.testing.assert_array_equal(w.grad.numpy(), [18, 36])
        assert w.tolist() == [1, 2]
        with pytest.raises(GradientError, match="no_grad"):
            w += 1.0
        alias = w
        with meta.no_grad():
            w -= 0.5
        assert alias is w and w.requires_grad and w.tolist() == [0.5, 1.5]

    def test_a_part(self) -> None:
        x = meta.array([[1.0, 2.0], [3.0, 4.0]])
        x[0] += 1.0
        x[:, 1] *= x[:, 0]
        assert x.tolist() == [[2, 6], [3, 12]]


def test_round() -> None:
    x = np.array([-2.5, -0.125, 1.5, 123.456])
    for digits in (None, 0, 1, 2, -1):
        want = np.round(x, digits or 0)
        for found in (
            round(meta.array(x), digits),
            trace(lambda x, digits=digits: round(x, digits))(meta.array(x)),
        ):
            assert found.dtype == "float64"
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-15)
    whole = meta.array([15, 25])
    assert round(whole).tolist() == round(whole, 2).tolist() == [15, 25]
    with pytest.raises(TypeError, match="integers are rounded"):
        round(whole, -1)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_divmod(dtype: str) -> None:
    a, b = np.array([7, -7, 6], dtype), np.array([2, 2, -4], dtype)
    x, y = meta.array(a), meta.array(b)
    for found, want in (
        (divmod(x, y), divmod(a, b)),
        (divmod(x, 3), divmod(a, 3)),
        (divmod(9, y), divmod(9, b)),
        (trace(lambda x, y: divmod(x, y))(x, y), divmod(a, b)),
    ):
        for f, w in zip(found, want, strict=True):
            np.testing.assert_array_equal(f.numpy(), w)


def test_contains() -> None:
    x = meta.array([[1.0, 2.0], [3.0, 4.0]])
    assert 2.0 in x and 2 in x and 5 not in x and meta.array(3.0) in x
    assert None not in x and "a" not in x and 1 not in meta.zeros((0,))
    assert True in meta.array([False, True])
    with pytest.raises(TraceError):
        trace(lambda x: x + 1.0 if 2.0 in x else x)(x)


def test_an_index_of_python_s_own() -> None:
    names = ["a", "b", "c"]
    assert names[meta.array(1)] == "b" and names[meta.array([-1], "int8")] == "c"
    for wrong in (meta.array(1.0), meta.array(True), meta.array([1, 2])):
        with pytest.raises(TypeError):
            names[wrong]
