"""Shape arithmetic of type functions: the same answers as numpy's, or the user's error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meta.base import dtype as dtypes
from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, SymbolicDim, TensorType
from meta.op.core.check import (
    broadcast_shapes,
    normalize_axes,
    normalize_axis,
    pair,
    require,
    require_float,
    require_ndim,
    require_same_dtype,
    shapes_compatible,
)

SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)
DTYPES = st.sampled_from(dtypes.DTYPES)
N = SymbolicDim("n")


@given(st.lists(SHAPES, max_size=4))
def test_broadcast_shapes(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(TypeInferError, match="cannot be broadcast") as caught:
            broadcast_shapes(*shapes)
        assert all(str(list(s)) in str(caught.value) for s in shapes)
    else:
        assert broadcast_shapes(*shapes) == expected


def test_broadcast_shapes_with_unknown_extents() -> None:
    assert broadcast_shapes((N, 1), (1, 3)) == (N, 3)
    assert broadcast_shapes((N,), (2, N)) == (2, N)
    assert broadcast_shapes((UNKNOWN,), (1,)) == (UNKNOWN,)
    assert broadcast_shapes((UNKNOWN, 3), (2, UNKNOWN), (1, 1)) == (2, 3)
    assert broadcast_shapes((N,), (UNKNOWN,)) == (N,)
    for other in (2, SymbolicDim("m")):
        with pytest.raises(TypeInferError):
            broadcast_shapes((N,), (other,), (UNKNOWN,))


def test_shapes_that_may_be_equal() -> None:
    assert (
        shapes_compatible((2, UNKNOWN), (UNKNOWN, 3))
        and shapes_compatible((N,), (UNKNOWN,))
        and shapes_compatible((), ())
    )
    assert (
        not shapes_compatible((2, UNKNOWN), (3, 3))
        and not shapes_compatible((2,), (2, UNKNOWN))
        and not shapes_compatible((N,), (2,))
    )


@given(st.integers(-6, 6), st.integers(0, 4))
def test_normalize_axis(axis: int, ndim: int) -> None:
    try:
        expected = np.lib.array_utils.normalize_axis_index(axis, ndim)
    except IndexError:
        with pytest.raises(TypeInferError, match="out of range"):
            normalize_axis(axis, ndim)
    else:
        assert normalize_axis(axis, ndim) == expected


@given(st.lists(st.integers(-5, 5), max_size=4), st.integers(0, 4), st.booleans())
def test_normalize_axes(axes: list[int], ndim: int, exclude: bool) -> None:
    try:
        named = np.lib.array_utils.normalize_axis_tuple(axes, ndim)
    except ValueError:  # numpy's AxisError is one, and so is a repeated axis
        with pytest.raises(TypeInferError):
            normalize_axes(axes, ndim, exclude)
        return
    expected = set(range(ndim)) - set(named) if exclude else set(named)
    assert normalize_axes(tuple(axes), ndim, exclude) == tuple(sorted(expected))
    if len(axes) == 1:
        assert normalize_axes(axes[0], ndim, exclude) == tuple(sorted(expected))


def test_none_names_all_axes() -> None:
    assert normalize_axes(None, 3) == (0, 1, 2)
    with pytest.raises(TypeInferError, match="none is"):
        normalize_axes(None, 3, exclude=True)


@given(DTYPES, DTYPES)
def test_promote_is_torchs(a: str, b: str) -> None:
    if a != b and dtypes.FLOAT8 & {a, b}:  # of which torch's table has nothing
        found = dtypes.promote(a, b)
        assert found == dtypes.promote(b, a) and found in (
            {a, b} & (dtypes.FLOATS | dtypes.COMPLEX) or {"float16"}
        )
        return
    if {"uint16", "uint32", "uint64"} & {a, b}:  # of which torch's table has not all
        gradient = [d for d in (a, b) if dtypes.has_gradient(d)]
        expected = gradient[0] if gradient else np.promote_types(a, b).name
        assert dtypes.promote(a, b) == dtypes.promote(b, a) == expected
        return
    expected = torch.promote_types(dtypes.TO_TORCH[a], dtypes.TO_TORCH[b])
    assert dtypes.TO_TORCH[dtypes.promote(a, b)] == expected
    assert dtypes.promote(a, b) == dtypes.promote(b, a)


@given(DTYPES, st.sampled_from([True, 2, 2.5]))
def test_a_number_takes_the_tensors_dtype_or_is_refused(dtype: str, number: float) -> None:
    # It is taken where torch would not promote: the tensor's dtype holds numbers of that kind.
    holds = torch.result_type(torch.ones(1, dtype=dtypes.TO_TORCH[dtype]), number)
    tensor = TensorType((1,), dtype)
    for operands in ((tensor, number), (number, tensor)):
        if holds == dtypes.TO_TORCH[dtype]:
            assert require_same_dtype(*operands) == dtype
            continue
        with pytest.raises(TypeInferError, match="does not fit a tensor of") as caught:
            require_same_dtype(*operands)
        assert caught.value.hint == f'cast the tensor: meta.astype(x, "{dtypes.FROM_TORCH[holds]}")'


@given(DTYPES, DTYPES)
def test_tensors_have_one_dtype(a: str, b: str) -> None:
    operands = TensorType((2,), a), TensorType((), b)
    if a == b:
        assert require_same_dtype(*operands) == a
        return
    with pytest.raises(TypeInferError, match="differ in dtype") as caught:
        require_same_dtype(*operands)
    assert all(str(o) in str(caught.value) for o in operands)
    assert f'meta.astype(x, "{dtypes.promote(a, b)}")' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (("int64", "float32"), 'cast the int64 one: meta.astype(x, "float32")'),
        (("float32", "float16"), 'cast the float16 one: meta.astype(x, "float32")'),
        (("bfloat16", "float16"), 'cast the bfloat16 and float16 ones: meta.astype(x, "float32")'),
        (("bool", "int8", "bool"), 'cast the bool one: meta.astype(x, "int8")'),
    ],
)
def test_the_cast_that_loses_least_is_named(given: tuple[str, ...], hint: str) -> None:
    with pytest.raises(TypeInferError) as caught:
        require_same_dtype(*(TensorType((1,), d) for d in given))
    assert caught.value.hint == hint


def test_numbers_alone() -> None:
    assert require_same_dtype(1, 2.0) == "float32" and require_same_dtype(1, True) == "int64"
    assert require_same_dtype(True, False) == "bool"


def test_requirements() -> None:
    x = TensorType((2, 3), "int64")
    require(True, "never")
    with pytest.raises(TypeInferError, match="a sentence") as caught:
        require(False, "a sentence", expected=1, found=2)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    with pytest.raises(TypeInferError, match="x must be floating point"):
        require_float(x, "x")
    with pytest.raises(TypeInferError, match="x must have 4 axes"):
        require_ndim(x, 4, "x")
    assert pair(2, "strides") == pair((2,), "strides") == (2, 2)
    assert pair((1, 2, 3), "strides", 3) == (1, 2, 3)
    with pytest.raises(TypeInferError, match="strides must be an int or 2 ints"):
        pair((1, 2, 3), "strides")
