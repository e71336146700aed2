"""Gradient rules of others: what a rule returns has the shape and dtype of its argument, on the
tape, in programs and in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meta
from meta.base.errors import GradientError, MetaError
from meta.dialect import only
from meta.grad.core import gradient
from meta.ir.dims import UNKNOWN, SymbolicDim, differ
from meta.op.core import Op, Tensor, TensorType
from meta.task import OpTaskBinding, OpTaskInvocation, OpTaskSignature
from tests.registered import Author, author

X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.fixture
def own() -> Iterator[Author]:
    with author() as made, only("author", "torch"):
        yield made


def doubled(own: Author, rule: Callable[..., Any]) -> Op:
    """Return an operator of one argument with a gradient rule."""

    def same(x: Tensor) -> Tensor:
        return x

    base = own.kernel(same, lambda x: x * 2)
    gradient(base)(rule)
    return base


def joined(own: Author, rule: Callable[..., Any]) -> Op:
    """Return an operator of several arguments with a gradient rule."""

    def first(xs: tuple[Tensor, ...]) -> Tensor:
        return xs[0]

    base = own.kernel(first, lambda xs: xs[0] + xs[1])
    gradient(base)(rule)
    return base


def _tape(f: Callable[[Any], Any]) -> Any:
    x = meta.array(X)
    x.requires_grad = True
    f(x).sum().backward()
    return x.grad


def _of_a_result(f: Callable[[Any], Any]) -> Any:
    x = meta.array(X)
    x.requires_grad = True
    f(x * 3.0).sum().backward()
    return x.grad / 3.0


def _function(f: Callable[[Any], Any]) -> Any:
    return meta.grad.value_and_grad(lambda v: f(v).sum())(meta.array(X))[1]


def _compiled(f: Callable[[Any], Any]) -> Any:
    model = meta.model.trace(lambda x: meta.grad.value_and_grad(lambda v: f(v * 1.0).sum())(x))
    return meta.vm.compile(model, meta.array(X))(meta.array(X))[1]


WAYS = [_tape, _of_a_result, _function, _compiled]
WRONG: dict[str, Callable[..., Any]] = {
    r"float32\[\]": lambda dy: dy.sum(),
    r"float32\[3\]": lambda dy: dy.sum(0),
    r"float32\[3, 2\]": lambda dy: dy.T,
    r"float64\[2, 3\]": lambda dy: dy.astype("float64"),
    "float from": lambda dy: 2.0,
    "str from": lambda dy: "dy",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("found", WRONG)
def test_a_gradient_of_another_type_is_an_error(
    found: str, way: Callable[..., Any], own: Author
) -> None:
    base = doubled(own, WRONG[found])
    with pytest.raises(GradientError, match=found) as caught:
        way(base)
    error = caught.value
    assert error.op == base.name and "argument 'x'" in error.what
    assert "float32[2, 3]" in str(error.expected)
    assert f"the rule at {__file__}:" in str(error.found)
    assert error.span is not None and error.span.file == __file__


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_of_the_type_of_its_argument_is_taken(
    way: Callable[..., Any], own: Author
) -> None:
    assert way(doubled(own, lambda dy: dy * 2.0)).tolist() == [[2.0] * 3] * 2
    assert way(doubled(own, lambda dy: (dy.T * 2.0).T)).tolist() == [[2.0] * 3] * 2
    assert way(doubled(own, lambda x, dy: meta.ones_like(x))).tolist() == [[1.0] * 3] * 2
    with pytest.raises(GradientError, match="there is no gradient for argument 'x'"):
        way(doubled(own, lambda dy: None))


@pytest.mark.parametrize("way", WAYS)
def test_there_is_one_for_each_of_several_tensors(way: Callable[..., Any], own: Author) -> None:
    both = joined(own, lambda dy: (dy, dy))
    assert way(lambda x: both((x, x))).tolist() == [[2.0] * 3] * 2
    for rule, found in (
        (lambda dy: (dy,), "1 from the rule"),
        (lambda dy: (dy, dy, dy), "3 from the rule"),
        (lambda dy: dy, "from the rule"),
    ):
        base = joined(own, rule)
        with pytest.raises(GradientError, match=found) as caught:
            way(lambda x, base=base: base((x, x)))
        assert "the wrong number of results" in caught.value.what
    mixed = joined(own, lambda dy: (dy, dy.sum()))
    with pytest.raises(GradientError, match=r"float32\[\] from the rule"):
        way(lambda x: mixed((x, x)))


@pytest.mark.parametrize("size", [2, 5])
def test_extents_known_at_run_time_only(size: int, own: Author) -> None:
    good, bad = doubled(own, lambda dy: dy * 2.0), doubled(own, lambda dy: dy.sum(0))
    rows = TensorType((SymbolicDim("n"), 3), "float32")

    def of(base: Op) -> Any:
        return meta.model.trace(
            lambda x: meta.grad.value_and_grad(lambda v: base(v * 1.0).sum())(x)
        )

    run = meta.vm.compile(of(good), rows)
    assert run(meta.ones((size, 3)))[1].tolist() == [[2.0] * 3] * size
    with pytest.raises(GradientError, match=r"float32\[3\] from the rule"):
        meta.vm.compile(of(bad), rows)


@pytest.mark.parametrize("run", ["traced", "compiled"])
def test_what_only_a_run_can_tell_is_told_by_the_run(run: str, own: Author) -> None:
    """The rows that a mask picks: the gradient has as many, or one less."""

    def rows(mask: Any) -> Any:
        return meta.reshape(meta.argwhere(mask), (-1,))

    def of(base: Op) -> Any:
        def function(x: Any, mask: Any) -> Any:
            picked = meta.take(x, rows(mask), 0)
            return meta.grad.value_and_grad(lambda v: base(v * 1.0).sum())(picked)

        return meta.model.trace(function)

    def shorter(x: Any, dy: Any) -> Any:
        keep = rows(meta.sum(x, 1) < 15.0)
        return meta.take(dy, keep, 0)

    x, mask = meta.array(X), meta.array([True, True])
    good, bad = of(doubled(own, lambda dy: dy * 2.0)), of(doubled(own, shorter))
    if run == "compiled":
        good, bad = (meta.vm.compile(f, x, mask) for f in (good, bad))
    for picked in ([True, True], [False, True], [True, False]):
        mask = meta.array(picked)
        assert good(x, mask)[1].tolist() == [[2.0] * 3] * sum(picked)
    assert bad(x, meta.array([True, False]))[1].tolist() == [[1.0] * 3]  # there they are as many
    with pytest.raises(MetaError, match="reshape_like"):
        bad(x, meta.array([True, True]))


def test_dimensions_that_are_known_to_differ() -> None:
    n, m = SymbolicDim("n"), SymbolicDim("m")
    assert differ(2, 3) and differ(n, n + 1) and differ(n, 0) and differ(2 * n + m, n)
    assert not any(differ(a, b) for a, b in ((2, 2), (n, n), (n, m), (n, 3), (UNKNOWN, 3)))


def test_a_backward_task_does_not_spread_a_gradient(own: Author) -> None:
    base = doubled(own, lambda dy: dy.sum())
    x, dy, dx = meta.array(X), meta.ones((2, 3)), meta.zeros((2, 3))
    signature = OpTaskSignature.of(base, "backward", x)
    binding = OpTaskBinding(signature).bind_grad("out", dy).bind_grad("x", dx)
    with pytest.raises(GradientError, match=r"float32\[\] from the rule"):
        OpTaskInvocation(signature, binding).run()
    assert dx.tolist() == [[0.0] * 3] * 2
