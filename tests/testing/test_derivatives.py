"""`meta.testing.check_grads` accepts right derivatives and refuses wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meta
from meta.base.errors import ArgumentError
from meta.base.registry import OPERATORS
from meta.grad.core import gradient
from meta.op.core import Tensor, op
from meta.testing import check_grads

X = meta.array([[0.3, -0.7, 1.1], [0.2, 0.9, -0.4]], "float64")

RIGHT: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "a number": (lambda x: meta.sum(meta.tanh(x) ** 3), [X]),
    "several": (lambda x, y: {"a": x @ y, "b": (meta.exp(x), x > 0)}, [X, X.mT]),
    "with integers": (lambda x, i: meta.take(x, i, 1), [X, meta.array([2, 0, 0])]),
    "a tree": (lambda t: t["a"] * t["b"][0], [{"a": X, "b": [X + 2.0]}]),
    "complex": (lambda z: meta.exp(z) * z, [X.astype("complex128")]),
    "a loop": (
        lambda x: meta.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, meta.sin(s[1]) * x), (meta.array(0), x)
        )[1],
        [X],
    ),
    "no elements": (lambda x: meta.sin(x), [meta.zeros((0, 3), "float64")]),
}


@pytest.mark.parametrize(("f", "args"), RIGHT.values(), ids=RIGHT)
def test_right_derivatives(f: Callable[..., Any], args: list[Any]) -> None:
    check_grads(f, args)


@pytest.mark.parametrize("modes", [("fwd",), ("rev",)])
def test_float32_and_a_third_order(modes: tuple[str, ...]) -> None:
    f = lambda x: meta.sum(meta.sin(x) * x)  # noqa: E731
    check_grads(f, [X.astype("float32")], 1, modes)
    check_grads(f, [X], 3, modes)


@pytest.fixture
def wrong() -> Iterator[Any]:
    """An operator whose gradient is a third too large."""

    @op(elementwise=True)
    def cubed_wrongly(x: Tensor) -> Tensor:
        """x ** 3."""
        return x

    @meta.dialect.core.DIALECTS["torch"].kernel(cubed_wrongly)
    def kernel(x: Any) -> Any:
        return x**3

    gradient(cubed_wrongly)(lambda x, dy: dy * x * x * 4.0)
    yield cubed_wrongly
    OPERATORS.remove("cubed_wrongly")
    del meta.dialect.core.DIALECTS["torch"].ops["cubed_wrongly"]


@pytest.mark.parametrize(("mode", "named"), [("fwd", "jvp"), ("rev", "vjp")])
def test_wrong_ones(wrong: Any, mode: str, named: str) -> None:
    with pytest.raises(AssertionError, match=f"^{named} is not what differences of values say"):
        check_grads(wrong, [X], modes=(mode,))


@pytest.mark.parametrize(
    "call",
    [
        lambda: check_grads(meta.sin, [X], 0),
        lambda: check_grads(meta.sin, [X], modes=("forward",)),
        lambda: check_grads(meta.sin, [X.astype("bfloat16")]),
        lambda: check_grads(lambda i: i, [meta.array([1])]),
    ],
)
def test_errors(call: Callable[[], None]) -> None:
    with pytest.raises(ArgumentError, match="derivatives are checked"):
        call()
