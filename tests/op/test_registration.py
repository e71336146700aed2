"""What is registered on an operator, and the operator itself, stated wrongly: an error at the
author's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.amp.cast_rule import generic_cast, infer_cast, register_op_cast_rule
from meta.base.errors import GradientError, RegistrationError, TypeInferError
from meta.base.registry import OPERATORS
from meta.dialect.torch import torch as aten
from meta.dialect.tvm.compute import ELEMWISE, compute, pointwise, table
from meta.grad.core import gradient, not_differentiable
from meta.op.core import Op, Tensor, op

X = meta.array([[1.0, 2.0]])


def forget(name: str) -> None:
    made = OPERATORS.get(name)
    if made is not None:
        for one in made.aspects.dialect_ops:
            del one.dialect.ops[name]
        OPERATORS.remove(name)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget("mine")


@pytest.fixture
def mine() -> Op:
    @op
    def mine(x: Tensor, axis: int = -1) -> Tensor:
        return x

    aten.kernel(mine)(lambda x: x * 1)
    return mine


def unknown_annotation(x: "Tensr") -> Tensor:  # type: ignore[name-defined]  # noqa: F821, UP037
    return x


def wrong_default(x: Tensor, axis: int = "last") -> Tensor:  # type: ignore[assignment]
    return x


def tensor_default(x: Tensor = 3) -> Tensor:  # type: ignore[assignment]
    return x


def not_optional(x: Tensor, bias: Tensor = None) -> Tensor:  # type: ignore[assignment]
    return x


def plain(x: Tensor, y: Tensor) -> Tensor:
    return x


OPERATOR: list[tuple[Any, dict[str, Any], str]] = [
    (3, {}, "above what is no function"),
    (dict, {}, "above what is no function"),
    (unknown_annotation, {}, "an annotation means nothing"),
    (wrong_default, {}, "the default 'last' is none of int"),
    (tensor_default, {}, "the default 3 is none of tensor"),
    (not_optional, {}, "the default None is none of tensor"),
    (plain, {"name": "my op"}, "name is a word"),
    (plain, {"name": "acme.op"}, "name is a word"),
    (plain, {"name": "lambda"}, "name is a word"),
    (plain, {"name": 3}, "name is a word"),
    (plain, {"name": "array"}, "means something else in meta"),
    (plain, {"name": "vm"}, "means something else in meta"),
    (plain, {"name": "tvm"}, "means something else in meta"),
    (plain, {"name": "relu"}, "defined twice"),
    (plain, {"promotes": ("x1", "y")}, "promotes= of operator 'plain' has what is no argument"),
    (plain, {"promotes": "x"}, "promotes= of operator 'plain' has what is no argument"),
    (plain, {"indices": "y"}, "are no function"),
    (plain, {"indices": lambda z: []}, "depend on 'z'"),
    (plain, {"schema": "relu"}, "schema= of @op is no operator"),
    (plain, {"like": "relu"}, "like= of @op is no operator"),
    (plain, {"options": "relu"}, "options= of @op is no operator"),
]


@pytest.mark.parametrize(("function", "how", "message"), OPERATOR)
def test_an_operator_that_is_stated_wrongly(
    function: Any, how: dict[str, Any], message: str
) -> None:
    before = len(OPERATORS)
    with pytest.raises(RegistrationError, match=message) as caught:
        op(**how)(function)
    assert "test_registration.py" in str(caught.value) and len(OPERATORS) == before


def raises_value_error(x: Tensor) -> Tensor:
    raise ValueError("only matrices")


TYPE_FUNCTIONS: list[tuple[Callable[..., Any], str]] = [
    (raises_value_error, "its type function raises ValueError: only matrices"),
    (lambda x: x.shpae, "raises AttributeError"),
    (lambda x: x * 2, "raises TypeError"),
    (lambda x: None, "returns None"),
    (lambda x: [x, x], "returns"),
    (lambda x: "float32", "returns 'float32'"),
    (lambda x: 3, "returns 3"),
    (lambda x: x.shape, "returns"),
    (lambda x: x.with_dtype("flaot32"), "unknown dtype 'flaot32'|raises KeyError"),
]


@pytest.mark.parametrize(("body", "message"), TYPE_FUNCTIONS)
def test_a_type_function_that_is_wrong(body: Callable[..., Any], message: str) -> None:
    @op
    def mine(x: Tensor) -> Tensor:
        return body(x)

    aten.kernel(mine)(lambda x: x)
    for call in (lambda: mine(X), lambda: meta.model.trace(lambda x: mine(x)).program(X)):
        with pytest.raises(TypeInferError, match=message) as caught:
            call()
        assert "type function:" in str(caught.value) and "mine" in str(caught.value)


def test_what_is_known_from_types_may_be_returned() -> None:
    @op
    def mine(x: Tensor) -> tuple[int, ...]:
        return x.shape

    assert mine(X) == (1, 2)


def test_a_composed_operator_of_nothing() -> None:
    @op(composed=True)
    def mine(x: Tensor) -> Tensor:
        return x

    with pytest.raises(RegistrationError, match="nothing says what the composed operator 'mine'"):
        mine(X)


def by_keyword(dy: Any, *, x: Any) -> Any:
    return dy


def odd_annotation(dy: "Tensr") -> Any:  # type: ignore[name-defined]  # noqa: F821, UP037
    return dy


ASPECTS: list[tuple[Callable[[Op], Any], str]] = [
    (lambda mine: gradient("mine")(lambda dy: dy), "a gradient is of no operator"),
    (lambda mine: gradient(meta.one_hot, lambda dy: dy), "a gradient is of no operator"),
    (lambda mine: gradient()(lambda dy: dy), "a gradient is of no operator"),
    (lambda mine: gradient(mine)(3), "no plain function"),
    (lambda mine: gradient(mine)(dict), "no plain function"),
    (lambda mine: gradient(mine)(meta.op.exp), "asks for"),
    (lambda mine: gradient(mine)(by_keyword), "by keyword only"),
    (lambda mine: gradient(mine)(odd_annotation), "an annotation means nothing"),
    (lambda mine: gradient(mine)(lambda dy, z: dy), "asks for"),
    (lambda mine: not_differentiable("mine", why="x"), "is of no operator"),
    (lambda mine: not_differentiable(mine, why=""), "nothing says why"),
    (lambda mine: meta.amp.always(torch.relu), "a cast rule is of no operator"),
    (lambda mine: meta.amp.custom(lambda args, dtype: ()), "a cast rule is of no operator"),
    (lambda mine: meta.amp.custom(mine)(dict), "no plain function"),
    (lambda mine: register_op_cast_rule(mine, "always"), "no cast rule"),
    (lambda mine: register_op_cast_rule(mine, generic_cast(True, "3")), "more arguments"),
    (lambda mine: register_op_cast_rule(mine, infer_cast(True)), "more arguments"),
    (lambda mine: compute(mine, "elementwise"), "unknown fusion kind"),
    (lambda mine: compute(mine, None), "unknown fusion kind"),
    (lambda mine: compute(ELEMWISE, mine), "is of no operator"),
    (lambda mine: compute("mine", ELEMWISE), "is of no operator"),
    (lambda mine: compute(mine, ELEMWISE)(3), "no plain function"),
    (lambda mine: compute(mine, ELEMWISE, when="x"), "when= of a compute function"),
    (lambda mine: compute(mine, ELEMWISE)(lambda z: z), "asks for"),
    (lambda mine: pointwise(lambda v: v), "is of no operator"),
    (lambda mine: pointwise(mine, "elementwise"), "unknown fusion kind"),
    (lambda mine: pointwise(mine)(lambda v, w: v), "does not fit"),
    (lambda mine: pointwise(mine)(lambda v, *, axes: v), "does not fit"),
    (lambda mine: pointwise(mine, within="flaot32")(lambda v: v), "does not fit"),
    (lambda mine: table({"mine": lambda v: v}), "is of no operator"),
    (lambda mine: table({mine: 3}), "no plain function"),
]


@pytest.mark.parametrize(("register", "message"), ASPECTS)
def test_an_aspect_that_is_stated_wrongly(
    register: Callable[[Op], Any], message: str, mine: Op
) -> None:
    with pytest.raises(RegistrationError, match=message) as caught:
        register(mine)
    assert "test_registration.py" in str(caught.value)
    assert mine.aspects.gradient is None and mine.aspects.cast_rule is None


def test_a_gradient_rule_that_fails_names_its_line(mine: Op) -> None:
    gradient(mine)(lambda dy, x: dy.nothing)
    x = meta.array([[1.0, 2.0]])
    x.requires_grad = True
    with pytest.raises(GradientError, match="raises AttributeError") as caught:
        mine(x).sum().backward()
    assert "gradient rule: " in str(caught.value) and "test_registration.py" in str(caught.value)
