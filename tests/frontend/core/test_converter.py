"""Tests of `Converters`: what a converter is given, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta import op
from meta.base.errors import RegistrationError
from meta.frontend.core import CallSite, Converters, Unconvertible

DEFAULTS = {"scaled": {"factor": 2, "offset": 0, "note": ""}, "plain": {}}


@pytest.fixture
def registry() -> Converters:
    found = Converters("toy", DEFAULTS.get)

    @found("scaled", ignore=("note",))
    def scaled(x: float, y: float | None = None, *, factor: int, call: CallSite) -> Any:
        return x * factor, y, sorted(call.given)

    return found


def apply(registry: Converters, *args: Any, **attributes: Any) -> Any:
    return registry.apply(CallSite("scaled", given=frozenset(attributes)), args, attributes)


def test_attributes_have_their_defaults(registry: Converters) -> None:
    assert apply(registry, 3) == (6, None, [])
    assert apply(registry, 3, 4, factor=5, note="any", offset=0) == (
        15,
        4,
        ["factor", "note", "offset"],
    )


def test_other_attributes_are_handed_on() -> None:
    found = Converters("toy", DEFAULTS.get)

    @found("scaled", ignore=("note",))
    def scaled(x: float, *, factor: int, **others: Any) -> Any:
        return factor, others

    assert apply(found, 3, note="any") == (2, {"offset": 0})
    assert apply(found, 3, offset=7) == (2, {"offset": 7})


def test_the_defaults_of_a_function_are_those_of_a_source_that_states_none() -> None:
    found = Converters("toy", DEFAULTS.get)

    @found("own")
    def own(x: float, *, axis: int = -1, mode: str) -> Any:
        return x, axis, mode

    assert found.apply(CallSite("own"), (3,), {}) == (3, -1, None)
    assert found.apply(CallSite("own"), (3,), {"axis": 0, "mode": "a"}) == (3, 0, "a")


@pytest.mark.parametrize(
    ("args", "attributes", "why"),
    [
        ((1,), {"offset": 1}, "offset=1 is not supported"),
        ((1,), {"shift": 1}, "no attribute 'shift'"),
        ((), {}, "does not take these arguments"),
        ((1, 2, 3), {}, "does not take these arguments"),
    ],
)
def test_what_it_does_not_take(
    registry: Converters, args: tuple[Any, ...], attributes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unconvertible, match=why):
        apply(registry, *args, **attributes)


def test_an_attribute_that_the_source_has_not() -> None:
    with pytest.raises(RegistrationError, match="'factor', which is no attribute"):

        @Converters("toy", DEFAULTS.get)("plain")
        def plain(x: float, *, factor: int) -> Any:
            return x * factor


def test_one_that_is_refused_or_unknown(registry: Converters) -> None:
    registry.refuse("plain", why="for a test")
    with pytest.raises(Unconvertible, match="for a test"):
        registry.require("plain", {})
    with pytest.raises(Unconvertible, match="no converter") as caught:
        registry.require("scale", {})
    assert "scaled" in str(caught.value.hint)


SAME: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("own", op.softmax, "axs"), {}, "takes 'axs', which is no attribute of softmax"),
    (("own", op.softmax), {"dim": "axs"}, "takes 'axs', which is no attribute of softmax"),
    (("own", op.softmax), {"axis": "dim"}, "takes 'dim', which is no attribute of softmax"),
    (("own", op.softmax, "x"), {}, "takes 'x', which is no attribute of softmax"),
    (("scaled", op.softmax), {"ignore": ("factr",)}, "which is no attribute of softmax"),
    (("plain", op.softmax), {"ignore": ("axs",)}, "takes 'axs', which is no attribute of it"),
    (("plain", op.softmax), {"axs": "axis"}, "takes 'axs', which is no attribute of it"),
    (("plain", op.softmax), {"ignore": "axis"}, "in a tuple"),
    (("own", "softmax"), {}, "is of no operator"),
    (("own", op.torch.relu), {}, "is of no operator"),
    (("own", abs), {}, "is of no operator"),
]


@pytest.mark.parametrize(("args", "more", "message"), SAME)
def test_an_operator_that_is_not_the_same(
    args: tuple[Any, ...], more: dict[str, Any], message: str
) -> None:
    found = Converters("toy", DEFAULTS.get)
    with pytest.raises(RegistrationError, match=message) as caught:
        found.same(*args, **more)
    assert "test_converter.py" in str(caught.value) and args[0] not in found


@pytest.mark.parametrize(
    ("names", "function", "message"),
    [
        ((op.relu,), lambda x: x, "is of no operator"),
        ((), lambda x: x, "is of no operator"),
        (("own", 3), lambda x: x, "calls is of no operator"),
        (("own",), 3, "no plain function"),
        (("own",), dict, "no plain function"),
        (("own",), op.relu, "is an operator"),
    ],
)
def test_a_converter_that_is_none(names: tuple[Any, ...], function: Any, message: str) -> None:
    found = Converters("toy")
    with pytest.raises(RegistrationError, match=message) as caught:
        found(*names)(function)
    assert "test_converter.py" in str(caught.value) and "own" not in found


def returns_nothing(x: Any) -> None:
    meta.relu(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [(lambda x: x.nothing, "raises AttributeError"), (returns_nothing, "returns None")],
)
def test_a_converter_that_fails_names_its_author(function: Any, message: str) -> None:
    found = Converters("toy")
    found("own")(function)
    with pytest.raises(RegistrationError, match=message) as caught:
        found.apply(CallSite("own"), (meta.ones(2),), {})
    assert "test_converter.py" in str(caught.value)
