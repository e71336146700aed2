"""What is computed of small constants alone is an array while a program is converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meta
from meta import op
from meta.base.device import CPU
from meta.base.errors import ArgumentError
from meta.frontend.core import Unconvertible, constant_value, fold_constants
from meta.op.core.tracing import Trace

MOST = 6
SMALL, LARGE = meta.array([1.0, 2.0, 3.0]), meta.array([0.0] * 7)


def reads_on_the_way(x: Any) -> Any:
    middle = constant_value(op.add(x, 1.0))
    if middle is None:
        raise Unconvertible("the sum is not known")
    return op.multiply(x, float(middle.numpy()[0]))


def refuses_symbols(x: Any) -> Any:
    middle = op.add(x, 1.0)
    if constant_value(middle) is None:
        raise ArgumentError("an array is needed")
    return middle


def writes(x: Any) -> Any:
    new = op.copy(x)
    op.sgd(new, x, op.copy(x), 0.5, 0.5)
    return new


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "small": (op.exp, (SMALL,), True),
    "a tuple, and what is no array": (
        lambda parts, axis, _: op.concat(parts, axis),
        ((SMALL, SMALL), 0, None),
        True,
    ),
    "nothing": (lambda: op.zeros((2, 3)), (), True),
    "several results": (lambda x: (op.exp(x), op.log(x)), (SMALL,), True),
    "read on the way": (reads_on_the_way, (SMALL,), True),
    "no symbols on the way": (refuses_symbols, (SMALL,), True),
    "a large argument": (op.sum, (LARGE,), False),
    "a large result": (lambda x: op.broadcast_to(x, (3, 3)), (SMALL,), False),
    "large results": (lambda x: (op.exp(x), op.log(x), x + 1.0), (SMALL,), False),
    "a random one": (lambda x: op.dropout_train(x, 0.5), (SMALL,), False),
    "one of a random key": (
        lambda: op.random_uniform(op.random_key("cpu"), (3,), 0.0, 1.0),
        (),
        False,
    ),
    "a write": (writes, (SMALL,), False),
    "what is no constant": (lambda x, _: op.exp(x), (SMALL, object()), False),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_at_once(name: str) -> None:
    convert, arguments, at_once = CASES[name]
    trace = Trace(CPU)
    found = trace.run(fold_constants, lambda: convert(*arguments), arguments, CPU, MOST)
    results = found if isinstance(found, tuple) else (found,)
    assert [constant_value(r) is not None for r in results] == [at_once] * len(results)
    assert bool(trace.builder.bindings) != at_once
    if at_once:
        expected = convert(*arguments)
        for one, other in zip(results, expected if len(results) > 1 else (expected,), strict=True):
            assert one.numpy().tolist() == other.numpy().tolist()


@pytest.mark.parametrize("name", ["a random one", "one of a random key"])
def test_nothing_is_drawn_to_find_out(name: str) -> None:
    convert, arguments, _ = CASES[name]
    meta.random.seed(3)
    expected = meta.random.normal((3,)).numpy().tolist()
    meta.random.seed(3)
    Trace(CPU).run(fold_constants, lambda: convert(*arguments), arguments, CPU, MOST)
    assert meta.random.normal((3,)).numpy().tolist() == expected
