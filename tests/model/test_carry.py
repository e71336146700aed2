"""What control flow takes: containers in any order of keys, functions, and what is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meta
from meta.base.errors import ArgumentError, MetaError, TraceError, TypeInferError
from meta.model import trace
from meta.op.core import tree

X = [1.0, 2.0, 3.0]


def by_while(x: Any) -> Any:
    start = {"n": 0, "inner": ({"a": x, "b": 1.0},)}

    def step(s: Any) -> Any:
        inner = s["inner"][0]
        return {"inner": ({"b": inner["b"] * 2.0, "a": inner["a"] + 1.0},), "n": s["n"] + 1}

    return meta.while_loop(lambda s: s["n"] < 3, step, start)


def by_scan(x: Any) -> Any:
    def step(s: Any, row: Any) -> Any:
        return {"b": s["b"] + row, "a": s["a"] * row}, {"y": row, "z": s["a"]}

    return meta.scan(step, {"a": 1.0, "b": 0.0}, x)


def by_cond(x: Any) -> Any:
    return meta.cond(
        meta.sum(x) > 0.0, lambda: {"a": x, "b": x + 1.0}, lambda: {"b": x, "a": x - 1.0}
    )


@pytest.mark.parametrize("function", [by_while, by_scan, by_cond])
def test_the_order_of_keys_does_not_matter(function: Callable[[Any], Any]) -> None:
    x = meta.array(X)
    expected, structure = tree.flatten(function(x))
    for run in (trace(function), meta.vm.compile(trace(function), x)):
        found, shape = tree.flatten(run(x))
        assert tree.fingerprint(shape) == tree.fingerprint(structure)
        assert [a.numpy().tolist() for a in found] == [a.numpy().tolist() for a in expected]


def test_values_are_found_by_their_keys() -> None:
    state = by_while(meta.array(X))
    assert state["n"].item() == 3 and state["inner"][0]["b"].item() == 8.0
    assert state["inner"][0]["a"].numpy().tolist() == [4.0, 5.0, 6.0]
    last, ys = by_scan(meta.array(X))
    assert last["a"].item() == 6.0 and last["b"].item() == 6.0
    assert ys["y"].numpy().tolist() == X and ys["z"].numpy().tolist() == [1.0, 1.0, 2.0]


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[MetaError], str]] = {
    "other keys": (
        lambda x: meta.while_loop(lambda s: s["a"] < 3, lambda s: {"b": s["a"]}, {"a": 0}),
        TraceError,
        "changes the type of its state",
    ),
    "a value for a branch": (
        lambda x: meta.cond(meta.sum(x) > 0.0, x, -x),
        ArgumentError,
        "lambda",
    ),
    "a value for a condition": (
        lambda x: meta.while_loop(True, lambda s: s, 0),
        ArgumentError,
        "given functions",
    ),
    "a value for a step": (lambda x: meta.scan(x, 0.0, x), ArgumentError, "given functions"),
    "a bool for a length": (
        lambda x: meta.scan(lambda s, r: (s, s), 0.0, None, length=True),
        TypeInferError,
        "scan needs rows",
    ),
    "no rows": (
        lambda x: meta.scan(lambda s, r: (s, r), 0.0, x[:0]),
        TypeInferError,
        "at least 1",
    ),
    "no length": (
        lambda x: meta.scan(lambda s, r: (s, s), 0.0, None, length=0),
        TypeInferError,
        "at least 1",
    ),
    "a predicate with an axis": (
        lambda x: meta.cond(x[:1] > 0.0, lambda: x, lambda: -x),
        TypeInferError,
        "bool array without axes",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("form", [lambda f: f, trace], ids=["eager", "traced"])
def test_mistakes(name: str, form: Any) -> None:
    function, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        form(function)(meta.array(X))
