"""The extents of a call: read from the shapes of the inputs, checked against declared ranges."""

from __future__ import annotations

import pytest

from meta.base.errors import ArgumentError
from meta.ir import Function, parse_function
from meta.vm.extents import DIMS, Extents, Range, declared, ranges_of


def main(*types: str) -> Function:
    params = ", ".join(f"%p{i}: {t}" for i, t in enumerate(types))
    return parse_function(f"fn({params}) {{\n  return %p0\n}}")


def test_ranges_are_an_attribute_of_main() -> None:
    function = declared(main("float32[n, m, 3]"), {"n": (2, 8)})
    assert function.attrs[DIMS] == (("m", 1, None), ("n", 2, 8))
    assert ranges_of(function) == {"m": Range(), "n": Range(2, 8)}
    assert declared(function, {"m": (1, 4)}).attrs[DIMS] == (("m", 1, 4), ("n", 2, 8))


def test_a_static_main_declares_nothing() -> None:
    assert declared(main("float32[3]"), {}).attrs == {}


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"k": (1, 2)}, "no argument has a dimension 'k'"),
        ({"n": (0, 2)}, "the range of dimension 'n' is not one"),
        ({"n": (3, 2)}, "the range of dimension 'n' is not one"),
    ],
)
def test_wrong_ranges(dims: dict[str, tuple[int, int]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        declared(main("float32[n]"), dims)


def test_extents_of_a_call() -> None:
    extents = Extents(main("float32[n, 2*m + 1]", "float32[m, n]"))
    assert extents.of([(4, 7), (3, 4)]) == {"m": 3, "n": 4}
    for shapes in ([(4, 7), (3, 5)], [(4, 8), (3, 4)], [(4,), (3, 4)]):
        with pytest.raises(ArgumentError, match="not of the shape compiled for"):
            extents.of(shapes)


def test_out_of_range_names_dimension_range_and_value() -> None:
    extents = Extents(declared(main("float32[n]"), {"n": (2, 8)}))
    assert extents.of([(8,)]) == {"n": 8}
    for n in (1, 9):
        with pytest.raises(ArgumentError) as caught:
            extents.of([(n,)])
        text = str(caught.value)
        assert "dimension 'n' is out of range: axis 0 of %p0" in text
        assert "2 to 8" in text and f"found:    {n}" in text


def test_an_extent_that_no_argument_says() -> None:
    with pytest.raises(ArgumentError, match="nothing says what the dimension 'n' is"):
        Extents(main("float32[2*n]"))
