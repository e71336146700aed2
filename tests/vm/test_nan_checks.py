"""META_DEBUG_NANS names the operator that made the first NaN or infinity, in every executor."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
import meta.frontend.dynamo
from meta import op
from meta.base import config
from meta.base.errors import ArgumentError, NonFiniteError
from meta.ir import parse_type
from meta.model import trace
from tests.conftest import python_process


def root_of_difference(x: Any, y: Any) -> Any:
    a = op.exp(x)
    b = op.sqrt(op.subtract(a, y))  # the fault
    return op.matmul(op.multiply(b, 2.0), op.tanh(a))


def line_of(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    return f"{Path(__file__).name}:{lines.index(text) + 1}"


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
    with meta.debug_nans(infinities=True):
        run(x, good)
        with pytest.raises(NonFiniteError) as caught:
            run(x, bad)
    error = caught.value
    assert error.op == "sqrt"
    assert "this operator made a NaN" in str(error)
    assert "nan at [1, 0] of result 0: float32[2, 2]" in str(error)
    assert "  x: float32[2, 2], from -1.61094 to 11.1825" in str(error)
    assert re.search(r"computed by \w+\.sqrt", str(error))
    assert str(error.span).endswith(line_of("    b = op.sqrt(op.subtract(a, y))  # the fault"))
    run(x, bad)  # the block has ended


def test_the_operator_inside_of_a_fused_kernel_is_named() -> None:
    def f(x: Any, y: Any) -> Any:
        a = op.exp(x)
        return op.sum(op.multiply(op.sqrt(op.subtract(a, y)), op.tanh(a)))

    x, y = meta.arange(4, dtype="float32"), meta.array([0.5, 0.5, 9, 1])
    with meta.dialect.only("tvm"):
        run = compiled(f, x, y)
    with meta.debug_nans(), pytest.raises(NonFiniteError) as caught:
        run(x, y)
    assert caught.value.op == "sqrt" and "computed by tvm.sqrt" in str(caught.value)
    assert "which is exp, subtract, sqrt, tanh, multiply, sum" in str(caught.value)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_handed_on_is_not_made(executor: str) -> None:
    def masked(scores: Any, keep: Any) -> Any:
        return op.softmax(op.where(keep, scores, float("-inf")))

    args = (square(0, 1, 2, 3), meta.array([[True, False], [True, True]]))
    with meta.debug_nans(infinities=True):
        result = EXECUTORS[executor](masked, *args)(*args)
    assert result.numpy()[0].tolist() == [1, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_nan_made_of_infinities_is_told(executor: str) -> None:
    def difference(x: Any) -> Any:
        return op.subtract(x, x)

    x = square(0, float("inf"), 2, 3)
    with meta.debug_nans(infinities=True), pytest.raises(NonFiniteError, match="subtract"):
        EXECUTORS[executor](difference, x)(x)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_argument_written_in_place_is_a_result(executor: str) -> None:
    def update(x: Any, dx: Any, v: Any) -> Any:
        op.sgd(x, dx, v, 3e38, 0.0)
        return op.negative(v)

    args = (square(1, 1, 1, 1), square(2, 2, 2, 2), square(0, 0, 0, 0))
    with meta.debug_nans(infinities=True), pytest.raises(NonFiniteError) as caught:
        EXECUTORS[executor](update, *args)(*args)
    assert "-inf" in str(caught.value)


def test_a_gradient_operator_is_checked() -> None:
    x = meta.array([0.0, 1.0])
    x.requires_grad = True
    with meta.debug_nans(infinities=True):
        y = op.sum(op.sqrt(x))
        with pytest.raises(NonFiniteError, match="inf at") as caught:
            y.backward()
    assert "in the gradient of sqrt, called at" in str(caught.value)


def test_a_loop_in_the_vm() -> None:
    def body(state: tuple[Any, Any]) -> tuple[Any, Any]:
        return op.add(state[0], 1), op.multiply(state[1], 1e30)

    def loop(x: Any) -> Any:
        return meta.while_loop(lambda state: op.less(state[0], 3), body, (meta.array(0), x))[1]

    x = square(1, 1, 1, 1)
    run = compiled(loop, x)
    with meta.debug_nans(infinities=True), pytest.raises(NonFiniteError, match="multiply"):
        run(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_overflows(dtype: str) -> None:
    x = meta.array([1e30 if dtype == "bfloat16" else 300.0], dtype)
    with meta.debug_nans(infinities=True), pytest.raises(NonFiniteError, match="inf at"):
        op.multiply(op.multiply(x, x), x)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_infinities_are_looked_for_where_asked(executor: str) -> None:
    def difference(x: Any) -> Any:
        y = op.divide(1.0, x)
        return op.subtract(y, y)

    x = square(0, 1, 2, 3)
    run = EXECUTORS[executor](difference, x)
    with (
        meta.debug_nans(),
        pytest.raises(NonFiniteError, match=r"subtract: .* made a NaN") as caught,
    ):
        run(x)
    assert "x1: float32[2, 2], from 0.333333 to 1, 1 inf" in str(caught.value)
    with meta.debug_nans(True), pytest.raises(NonFiniteError, match=r"divide: .* made an infinity"):
        run(x)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_passes_a_nan_on_is_not_accused(executor: str) -> None:
    def passed(x: Any) -> Any:
        return op.isnan(x), op.nan_to_num(x), op.where(op.isnan(x), 0.0, x), op.astype(x, "int32")

    x = square(float("nan"), float("inf"), 2, 3)
    with meta.debug_nans():
        found = EXECUTORS[executor](passed, x)(x)
    assert [y.numpy().ravel()[0] for y in found[:3]] == [True, 0.0, 0.0]


class Scaled(meta.Model):
    def build(self, weight: meta.ndarray) -> None:
        self.weight = meta.model.parameter(weight)

    @trace
    def forward(self, x: Any) -> Any:
        return op.sum(op.multiply(op.exp(x), self.weight))


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("bad", ["x", "weight"])
def test_an_argument_that_has_one_is_named(compiles: bool, bad: str) -> None:
    values = {"x": square(0, 1, 2, 3), "weight": square(0, 1, 2, 3)}
    values[bad] = square(0, float("nan"), 2, float("inf"))
    model = Scaled(values["weight"]).eval()
    run = meta.vm.compile(model, values["x"]) if compiles else model
    with meta.debug_nans(), pytest.raises(NonFiniteError, match="came with an argument") as caught:
        run(values["x"])
    assert f"%{bad}: float32[2, 2], from 0 to 2, 1 NaN, 1 inf" in str(caught.value)


def test_what_is_prepared_of_weights_is_looked_at() -> None:
    model = Scaled(square(-1, 1, 2, 3)).eval()

    @trace
    def of_weight(x: Any) -> Any:
        return op.add(x, op.matmul(op.log(model.weight), op.log(model.weight)))

    class Net(meta.Model):
        def build(self) -> None:
            self.model, self.call = model, of_weight

        @trace
        def forward(self, x: Any) -> Any:
            return of_weight(x)

    x = square(0, 1, 2, 3)
    run = meta.vm.compile(Net().eval(), x)
    run(x)
    with meta.debug_nans(), pytest.raises(NonFiniteError, match="log: this operator made a NaN"):
        run(x)


def test_a_gradient_in_a_compiled_program_names_the_line_of_the_function() -> None:
    def slope(x: Any) -> Any:
        return meta.grad(lambda x: op.sum(op.sqrt(x)))(x)  # the root

    x = meta.array([0.0, 1.0])
    run = compiled(slope, x)
    with meta.debug_nans(True), pytest.raises(NonFiniteError, match=r"sqrt_dx.*infinity") as caught:
        run(x)
    found = line_of("        return meta.grad(lambda x: op.sum(op.sqrt(x)))(x)  # the root")
    assert str(caught.value.span).endswith(found)


def test_extents_that_are_known_when_it_runs() -> None:
    x = meta.array([1.0, -1.0, 2.0])
    with meta.dialect.only("torch"):  # which decides at each extent
        run = meta.vm.compile(trace(lambda x: op.sum(op.sqrt(x))), parse_type("float32[n]"))
    with meta.debug_nans(), pytest.raises(NonFiniteError, match="sqrt: this operator made a NaN"):
        run(x)
    run(x)  # the block has ended


@pytest.mark.parametrize("dtype", ["complex64", "float8_e5m2"])
def test_dtypes_of_their_own(dtype: str) -> None:
    x = meta.array([float("inf"), 1.0]).astype(dtype)
    with meta.debug_nans(), pytest.raises(NonFiniteError, match=r"nan.* at \[0\] of result 0"):
        x * 0.0 if dtype == "complex64" else x.astype("float32") * 0.0


def test_torch_compile() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.sqrt(torch.exp(x) - 1.0)  # of 0 it has no gradient
        return (y * torch.tanh(x)).sum()

    run = torch.compile(f, backend="meta")
    run(torch.ones(3, requires_grad=True)).backward()
    line = line_of("        y = torch.sqrt(torch.exp(x) - 1.0)  # of 0 it has no gradient")
    with meta.debug_nans():
        with pytest.raises(NonFiniteError, match="sqrt: this operator made a NaN") as caught:
            run(torch.tensor([1.0, -1.0, 1.0], requires_grad=True))
        assert str(caught.value.span).endswith(line)
        y = run(torch.tensor([1.0, 0.0, 1.0], requires_grad=True))
        with pytest.raises(NonFiniteError, match="made a NaN") as caught:
            y.backward()
        assert str(caught.value.span).endswith(line)


@pytest.mark.parametrize("value", ["1", "inf"])
def test_the_environment_variable(value: str) -> None:
    code = "import meta; meta.log(meta.array([-1.0]))"
    done = python_process("-c", code, META_DEBUG_NANS=value)
    assert "NonFiniteError: log: this operator made a NaN" in done.stderr


@pytest.mark.parametrize(
    ("text", "value"), [("", ""), ("0", ""), ("on", "nan"), ("NaN", "nan"), ("INF", "inf")]
)
def test_its_values(text: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_DEBUG_NANS", text)
    assert config.get("META_DEBUG_NANS") == value


def test_another_value_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_DEBUG_NANS", "infinity")
    with pytest.raises(ArgumentError, match="META_DEBUG_NANS"):
        config.get("META_DEBUG_NANS")
