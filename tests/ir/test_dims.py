"""Symbolic dimensions: arithmetic against numbers, canonical form, comparisons, text."""

from __future__ import annotations

import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meta.base.errors import IRError, TypeInferError
from meta.ir import UNKNOWN, SymbolicDim, TensorType, parse_type
from meta.ir.dims import product, total
from tests.ir.programs import symbolic_dims

N, M = SymbolicDim("n"), SymbolicDim("m")
NAMES = st.sampled_from([N, M])
dims = st.recursive(
    NAMES | st.integers(-6, 6),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a // b, inner, st.integers(1, 7)),
        st.builds(lambda a, b: a % b, inner, st.integers(1, 7)),
    ),
    max_leaves=8,
)
extents = st.fixed_dictionaries({"n": st.integers(1, 40), "m": st.integers(1, 40)})


def value(dim: int | SymbolicDim, at: dict[str, int]) -> int:
    return dim if isinstance(dim, int) else dim.evaluate(at)


@given(dims, dims, st.integers(1, 7), extents)
def test_arithmetic_is_that_of_numbers(a, b, k, at) -> None:
    x, y = value(a, at), value(b, at)
    assert value(a + b, at) == x + y
    assert value(a - b, at) == x - y
    assert value(a * b, at) == x * y
    assert value(a // k, at) == x // k
    assert value(a % k, at) == x % k
    assert value(-a, at) == -x


@given(dims, dims, extents)
def test_what_compares_is_right(a, b, at) -> None:
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            found = compare(a, b)
        except TypeInferError:
            continue
        assert found == compare(value(a, at), value(b, at))


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (0, -N % 4),
        (-N % 4, 3),
        (N, (N + 3) // 4 * 4),
        (N // 4 * 4, N),
        (2 * (M // 3), M - M // 3),
        (0, (N - N // 2) // 3),
    ],
    ids=str,
)
def test_a_quotient_is_near_its_numerator(smaller, larger) -> None:
    assert smaller <= larger and larger - smaller > -1


def test_quotients_of_quotients() -> None:
    assert (N // 2) // 4 == N // 8 == (N // 4) // 2
    assert (N // 2 + M) // 3 == (N + 2 * M) // 6
    assert ((N + 1) // 2 + 7) // 4 == (N + 15) // 8


@given(dims, dims, dims)
def test_equal_polynomials_are_equal(a, b, c) -> None:
    assert a * (b + c) == a * b + a * c
    assert a - b == -(b - a)
    assert hash(a + b) == hash(b + a)


@given(dims, dims)
def test_exact_division(a, b) -> None:
    assume(isinstance(a, SymbolicDim) and b != 0)
    whole = a * b
    assume(isinstance(whole, SymbolicDim))
    quotient = whole.exactly_by(b)
    assert quotient is None or quotient == a


@given(symbolic_dims)
def test_print_is_parse(dim: SymbolicDim) -> None:
    type_ = TensorType((dim, 3), "float32")
    assert parse_type(str(type_)) == type_


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (N, "n"),
        (N * 64 + 1, "64*n + 1"),
        (1 - N, "-n + 1"),
        (N * M * N - M, "m*n*n - m"),
        ((N + 1) // 2, "((n + 1) // 2)"),
        ((4 * N + 3) // 2, "2*n + 1"),
        ((N + 1) // 2 * 3, "3*((n + 1) // 2)"),
        (SymbolicDim("a b") + 2, '"a b" + 2'),
    ],
)
def test_text(dim: SymbolicDim, text: str) -> None:
    assert str(dim) == text


@pytest.mark.parametrize(
    "text", ["float32[((n) // 0)]", "float32[((2*n) // 2)]", "float32[(n)]", "float32[n +]"]
)
def test_what_is_no_dimension(text: str) -> None:
    with pytest.raises(IRError):
        parse_type(text)


def test_nested_quotients_end() -> None:
    with pytest.raises(IRError, match="nested"):
        parse_type("float32[" + "((" * 5000 + "n]")


def test_names_that_cancel_leave_a_number() -> None:
    assert N - N == 0 and (N + 3) - N == 3 and N // N == 1 and (6 * N) // (2 * N) == 3


def test_unknown_ones_spread() -> None:
    assert product((N, UNKNOWN)) is UNKNOWN and total((N, UNKNOWN)) is UNKNOWN
    assert product((0, UNKNOWN)) == 0 and product((N, 2, N)) == 2 * N * N
    assert (N + M).substitute(lambda name: 3 if name == "n" else UNKNOWN) is UNKNOWN


def test_what_depends_on_the_extent_is_an_error() -> None:
    with pytest.raises(TypeInferError, match="depends on the extents"):
        _ = N > 5
    assert N >= 1 and not N < 1 and N + 4 > 4 and N + 1 > N
    with pytest.raises(TypeInferError, match="number of the dimension n"):
        range(N)  # type: ignore[call-overload]
