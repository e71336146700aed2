"""META_CHECK_FINITE finds the operator that made the first NaN or infinity, in every executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meta
from meta import op
from meta.base import config
from meta.base.errors import NonFiniteError
from meta.model import trace
from tests.conftest import python_process


def root_of_difference(x: Any, y: Any) -> Any:
    a = op.exp(x)
    b = op.sqrt(op.subtract(a, y))  # the fault
    return op.matmul(op.multiply(b, 2.0), op.tanh(a))


def interpreted(function: Any, *args: Any) -> Callable[..., Any]:
    return trace(function)


def compiled(function: Any, *args: Any) -> Callable[..., Any]:
    return meta.vm.compile(trace(function), *args)


def without_fusion(function: Any, *args: Any) -> Callable[..., Any]:
    return meta.vm.compile(trace(function), *args, opt_level=0)


EXECUTORS: dict[str, Callable[..., Callable[..., Any]]] = {
    "eager": lambda function, *args: function,
    "interpreter": interpreted,
    "VM": compiled,
    "VM without fusion": without_fusion,
}


def square(*values: float) -> meta.ndarray:
    return meta.array([values[:2], values[2:]], "float32")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_operator_the_line_and_the_types_are_told(executor: str) -> None:
    good, bad = square(0.5, 0.5, 1, 1), square(0.5, 0.5, 9, 1)
    x = square(0, 1, 2, 2.5)
    run = EXECUTORS[executor](root_of_difference, x, good)
    run(x, bad)  # nobody checks
    with config.override(META_CHECK_FINITE=True):
        run(x, good)
        with pytest.raises(NonFiniteError) as caught:
            run(x, bad)
    error = caught.value
    assert error.op == "sqrt"
    assert "nan at [1, 0]" in str(error) and "1 of 4 elements" in str(error)
    assert "sqrt(" in str(error) and "float32[2, 2]" in str(error)
    line = Path(__file__).read_text("utf-8").splitlines().index(
        "    b = op.sqrt(op.subtract(a, y))  # the fault"
    )  # fmt: skip
    assert str(error.span).endswith(f"test_finite.py:{line + 1}")
    run(x, bad)  # the block has ended


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_handed_on_is_not_made(executor: str) -> None:
    def masked(scores: Any, keep: Any) -> Any:
        return op.softmax(op.where(keep, scores, float("-inf")))

    args = (square(0, 1, 2, 3), meta.array([[True, False], [True, True]]))
    with config.override(META_CHECK_FINITE=True):
        result = EXECUTORS[executor](masked, *args)(*args)
    assert result.numpy()[0].tolist() == [1, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_nan_made_of_infinities_is_told(executor: str) -> None:
    def difference(x: Any) -> Any:
        return op.subtract(x, x)

    x = square(0, float("inf"), 2, 3)
    with config.override(META_CHECK_FINITE=True), pytest.raises(NonFiniteError, match="subtract"):
        EXECUTORS[executor](difference, x)(x)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_argument_written_in_place_is_a_result(executor: str) -> None:
    def update(x: Any, dx: Any, v: Any) -> Any:
        op.sgd(x, dx, v, 3e38, 0.0)
        return op.negative(v)

    args = (square(1, 1, 1, 1), square(2, 2, 2, 2), square(0, 0, 0, 0))
    with config.override(META_CHECK_FINITE=True), pytest.raises(NonFiniteError) as caught:
        EXECUTORS[executor](update, *args)(*args)
    assert "-inf" in str(caught.value)


def test_a_gradient_operator_is_checked() -> None:
    x = meta.array([0.0, 1.0])
    x.requires_grad = True
    with config.override(META_CHECK_FINITE=True):
        y = op.sum(op.sqrt(x))
        with pytest.raises(NonFiniteError, match="inf at"):
            y.backward()


def test_a_loop_in_the_vm() -> None:
    def body(state: tuple[Any, Any]) -> tuple[Any, Any]:
        return op.add(state[0], 1), op.multiply(state[1], 1e30)

    def loop(x: Any) -> Any:
        return meta.while_loop(lambda state: op.less(state[0], 3), body, (meta.array(0), x))[1]

    x = square(1, 1, 1, 1)
    run = compiled(loop, x)
    with config.override(META_CHECK_FINITE=True), pytest.raises(NonFiniteError, match="multiply"):
        run(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_overflows(dtype: str) -> None:
    x = meta.array([1e30 if dtype == "bfloat16" else 300.0], dtype)
    with config.override(META_CHECK_FINITE=True), pytest.raises(NonFiniteError, match="inf at"):
        op.multiply(op.multiply(x, x), x)


def test_the_environment_variable() -> None:
    code = "import meta; meta.log(meta.array([-1.0]))"
    done = python_process("-c", code, META_CHECK_FINITE="1")
    assert "NonFiniteError: log: this operator made a value that is not finite" in done.stderr
