"""`meta.measure`: who takes part, who is left out and why, what a cost says. A fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import (
    ArgumentError,
    IndexOutOfRange,
    TypeInferError,
    UnknownName,
)
from meta.base.registry import OPERATORS
from meta.cost.record import Cost
from meta.dialect import COMPILER, HANDWRITTEN, LIBRARY, Unsupported
from meta.dialect.core import CompiledKernel, Configs, Deferred, OpEnv
from meta.grad.core import not_differentiable
from meta.ir import TensorType
from meta.ir.operators import resolve_op
from meta.op.core import CallValues, InOut, Op, Tensor, op
from tests.vm.fakes import Fakes

X = TensorType((8, 4), "float32")
OPEN = meta.ir.parse_type("float32[n, 3]")


@pytest.fixture(autouse=True)
def torch_kernels() -> None:
    """All dialects take part here."""


@pytest.fixture
def double() -> Iterator[Op]:
    """An operator that nobody implements yet: two times x."""

    @op
    def test_double(x: Tensor) -> Tensor:
        return x

    not_differentiable(test_double, why="it is a test")
    yield test_double
    OPERATORS.remove("test_double")


def right(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def measured(fakes: Fakes, op: Op, *args: Any, **options: Any) -> dict[str, Cost]:
    """Measure by the fake clock; return the costs by name."""
    costs = meta.measure(op, *(args or (X,)), clock=fakes.clock, **options)
    return {cost.name: cost for cost in costs}


def test_each_candidate_has_its_time_in_the_order_of_dispatch(fakes: Fakes, double: Op) -> None:
    fakes.kernel(double, "fake_slow", LIBRARY, 40.0, right)
    fakes.kernel(double, "fake_first", HANDWRITTEN, 30.0, right, build=2500.0)
    fakes.kernel(double, "fake_fast", COMPILER, 20.0, right)
    found = measured(fakes, double)
    assert list(found) == ["fake_first", "fake_slow", "fake_fast"]
    times = {name: cost.forward for name, cost in found.items()}
    assert {n: round(t.median, 6) for n, t in times.items() if t} == {
        "fake_first": 30.0, "fake_slow": 40.0, "fake_fast": 20.0,
    }  # fmt: skip
    first = found["fake_first"]
    assert first.forward is not None and first.forward.count >= 7
    assert round(first.forward.p20, 6) == round(first.forward.p80, 6) == 30.0
    assert first.host == first.forward.median and first.backward is None
    assert first.compile is not None and round(first.compile, 6) == 2.5
    assert not first.refused and first.source
    assert first.bytes == {
        "inputs": 128, "outputs": 128, "weights": 0, "gradients": 0, "state": 0, "workspace": 0,
    }  # fmt: skip


def test_a_wrong_kernel_is_left_out(fakes: Fakes, double: Op) -> None:
    def nearly(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[3, 1] += 0.1
        return y

    fakes.kernel(double, "fake_right", HANDWRITTEN, 30.0, right)
    fakes.kernel(double, "fake_wrong", LIBRARY, 1.0, nearly)
    fakes.kernel(double, "fake_close", COMPILER, 20.0, lambda x: x * (2 + 1e-6))
    found = measured(fakes, double)
    assert found["fake_wrong"].forward is None and not found["fake_wrong"].bytes
    reason = found["fake_wrong"].refused
    assert "is wrong, if fake_right is right" in reason and "at [3, 1]" in reason
    assert "1 of 32 elements" in reason
    assert found["fake_close"].forward is not None


def test_promises_are_checked(fakes: Fakes, double: Op) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).clone()

    fakes.kernel(double, "fake_right", HANDWRITTEN, 30.0, right)
    fakes.kernel(double, "fake_view", LIBRARY, 1.0, lambda x: x.view(8, 4))
    fakes.kernel(double, "fake_writes", COMPILER, 1.0, writes)
    fakes.kernel(double, "fake_dtype", COMPILER, 1.0, lambda x: x.double() * 2)
    found = measured(fakes, double)
    assert "shares the memory of argument 0" in found["fake_view"].refused
    assert "argument 0 was written" in found["fake_writes"].refused
    assert "float64[8, 4]" in found["fake_dtype"].refused
    assert [n for n, cost in found.items() if cost.forward] == ["fake_right"]


def test_who_refuses_or_fails_says_why(fakes: Fakes, double: Op) -> None:
    def declining(call: CallValues) -> Any:
        raise Unsupported("only on Sundays")

    def broken(call: CallValues) -> Any:
        raise RuntimeError("no compiler")

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("launch failed")

    runs = iter(range(100))

    def once(x: torch.Tensor) -> torch.Tensor:
        if next(runs):
            raise RuntimeError("out of handles")
        return x * 2

    fakes.kernel(double, "fake_failing", HANDWRITTEN, 1.0, failing)
    fakes.dialect("fake_declining", plevel=LIBRARY).op(double)(declining)
    fakes.dialect("fake_broken", plevel=LIBRARY).op(double)(broken)
    fakes.kernel(double, "fake_right", LIBRARY, 30.0, right)
    fakes.kernel(double, "fake_once", COMPILER, 1.0, once)
    fakes.kernel(double, "fake_excluded", COMPILER, 1.0, right)
    fakes.dialect("fake_elsewhere", devices=("cuda",)).op(double)(declining)
    with meta.dialect.exclude("fake_excluded"):
        found = {n: c.refused for n, c in measured(fakes, double).items()}
    assert found["fake_declining"] == "only on Sundays"
    assert "cannot be made" in found["fake_broken"] and "no compiler" in found["fake_broken"]
    assert found["fake_failing"] == "fails: RuntimeError: launch failed"
    assert found["fake_once"] == "fails when it is called again: RuntimeError: out of handles"
    assert found["fake_excluded"] == "excluded by exclude()"
    assert found["fake_right"] == ""
    assert found.get("fake_elsewhere", "does not run on cpu").startswith("does not run on cpu")


def test_if_nobody_runs_all_are_refused(fakes: Fakes, double: Op) -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    fakes.kernel(double, "fake_a", HANDWRITTEN, 1.0, failing)
    fakes.kernel(double, "fake_b", LIBRARY, 1.0, failing)
    found = measured(fakes, double)
    assert {c.refused for c in found.values()} == {"fails: ValueError: no"}
    assert not any(c.forward for c in found.values())


def test_configurations_are_contenders(fakes: Fakes, double: Op) -> None:
    listed = [(("tile", n),) for n in (8, 4, 2, 1)]

    def made(config: Any) -> float:
        ((_, tile),) = config
        if tile == 4:
            raise Unsupported("4 is not a tile any more")
        return 10.0 + tile

    fakes.kernel(double, "fake", HANDWRITTEN, 30.0, right, configs=listed, made=made)
    found = measured(fakes, double, configs=3)
    assert list(found) == ["fake", "fake@tile=8", "fake@tile=4", "fake@tile=2"]
    assert found["fake@tile=4"].refused == "4 is not a tile any more"
    times = [c.forward and round(c.forward.median, 6) for c in found.values()]
    assert times == [30.0, 18.0, None, 12.0]
    assert list(measured(fakes, double, configs=0)) == ["fake"]


def test_configurations_are_compiled_in_one_go(fakes: Fakes, double: Op) -> None:
    goes: list[list[int]] = []

    def compile(tiles: Any) -> list[CompiledKernel]:
        goes.append(list(tiles))
        fakes.clock.seconds += 1e-3
        if 4 in tiles:
            raise RuntimeError("4 does not fit")
        return [CompiledKernel(right) for _ in tiles]

    def env(tile: int) -> OpEnv:
        return OpEnv(Deferred(tile, compile), True)

    configs = [(("tile", n),) for n in (8, 4, 2)]
    listed = Configs(lambda: configs, lambda config: env(int(config[0][1])))

    def make(call: CallValues) -> OpEnv:
        return OpEnv(Deferred(0, compile), True, configs=listed)

    fakes.dialect("fake", plevel=HANDWRITTEN).op(double)(make)
    found = measured(fakes, double, iters=0)
    assert goes == [[0], [8, 4, 2], [8], [4], [2]]
    assert {n: c.compile and round(c.compile, 6) for n, c in found.items()} == {
        "fake": 1.0, "fake@tile=8": 1.0, "fake@tile=4": None, "fake@tile=2": 1.0,
    }  # fmt: skip
    assert "4 does not fit" in found["fake@tile=4"].refused
    goes.clear()
    configs.remove((("tile", 4),))
    found = measured(fakes, double, iters=0)
    assert goes == [[0], [8, 2]]
    assert [c.compile and round(c.compile, 6) for c in found.values()] == [1.0, 0.5, 0.5]


def test_iters_0_runs_each_once(fakes: Fakes, double: Op) -> None:
    fakes.kernel(double, "fake_a", HANDWRITTEN, 30.0, right)
    fakes.kernel(double, "fake_b", LIBRARY, 10.0, lambda x: x * 3)
    fakes.kernel(double, "fake_c", COMPILER, 10.0, right)
    found = measured(fakes, double, iters=0)
    assert sorted(fakes.clock.launched) == ["fake_a", "fake_b", "fake_c"]
    assert all(c.forward is None and c.host is None for c in found.values())
    assert found["fake_a"].bytes["inputs"] == 128 and found["fake_a"].compile is not None
    assert "is wrong" in found["fake_b"].refused and not found["fake_c"].refused


def test_one_dialect_is_compared_with_the_first(fakes: Fakes, double: Op) -> None:
    fakes.kernel(double, "fake_a", HANDWRITTEN, 30.0, right)
    fakes.kernel(double, "fake_b", LIBRARY, 10.0, lambda x: x * 3)
    fakes.kernel(double, "fake_c", COMPILER, 10.0, right)
    assert list(measured(fakes, double, dialect="fake_c")) == ["fake_c"]
    assert "fake_b" not in fakes.clock.launched
    (wrong,) = measured(fakes, double, dialect="fake_b").values()
    assert "is wrong, if fake_a is right" in wrong.refused
    (cost,) = meta.measure(meta.op.fake_c.test_double, X, clock=fakes.clock)
    assert cost.dialect == "fake_c" and cost.forward is not None


def test_the_budget_is_kept(fakes: Fakes, double: Op) -> None:
    fakes.kernel(double, "fake_a", HANDWRITTEN, 1e5, right, build=1e6)
    fakes.kernel(double, "fake_b", LIBRARY, 1e5, right, build=4e6)
    fakes.kernel(double, "fake_c", COMPILER, 1e5, right, build=1e6)
    before = fakes.clock.now()
    found = measured(fakes, double, budget=3.0)
    assert found["fake_a"].forward is not None and found["fake_a"].forward.count == 1
    assert found["fake_b"].forward is not None and found["fake_b"].forward.count == 1
    assert "the budget of 3 s is used up" in found["fake_c"].refused
    assert fakes.clock.now() - before < 6, "the third is not even made"
    fakes.clock.seconds = 100.0
    found = measured(fakes, double, budget=30.0, iters=1000)
    counts = {c.forward.count for c in found.values() if c.forward}
    assert len(counts) == 1 and 20 < counts.pop() < 90
    assert fakes.clock.now() - 100 < 32


def test_written_arguments_are_put_back(fakes: Fakes) -> None:
    seen: list[float] = []

    @op
    def test_grow(x: InOut, by: Tensor) -> Tensor:
        return by

    def grow(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        seen.append(float(x[0, 0]))
        x.mul_(1000.0)
        return by.clone()

    def grow_wrong(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        x.mul_(1001.0)
        return by.clone()

    x = np.full((8, 4), 2.0, "float32")
    given = meta.array(x)
    try:
        fakes.kernel(test_grow, "fake_a", HANDWRITTEN, 30.0, grow)
        fakes.kernel(test_grow, "fake_b", LIBRARY, 30.0, grow_wrong)
        found = measured(fakes, test_grow, given, X)
    finally:
        OPERATORS.remove("test_grow")
    assert found["fake_a"].forward is not None and "is wrong" in found["fake_b"].refused
    assert given.numpy().tolist() == x.tolist()
    # A copy is written once between two rounds; the calls by which a batch is planned, thrice.
    assert max(seen) <= 2.0 * 1000.0**2 and seen.count(2.0) > len(seen) - 4


def test_random_operators_are_compared_by_type(fakes: Fakes) -> None:
    @op(random=True)
    def test_noise(x: Tensor) -> Tensor:
        return x

    try:
        fakes.kernel(test_noise, "fake_a", HANDWRITTEN, 30.0, torch.rand_like)
        fakes.kernel(test_noise, "fake_b", LIBRARY, 20.0, torch.rand_like)
        fakes.kernel(test_noise, "fake_c", COMPILER, 20.0, lambda x: torch.rand(3))
        found = measured(fakes, test_noise)
    finally:
        OPERATORS.remove("test_noise")
    assert found["fake_a"].forward and found["fake_b"].forward
    assert "float32[3]" in found["fake_c"].refused


@pytest.mark.parametrize(("base", "low"), [(meta.log, 0.0), (meta.acosh, 1.0), (meta.tanh, -3.0)])
def test_floats_suit_the_operator(fakes: Fakes, base: Op, low: float) -> None:
    seen: list[torch.Tensor] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        with meta.dialect.only("torch"):
            found: torch.Tensor = base(meta.array(x)).torch()
        return found

    fakes.kernel(base, "fake", HANDWRITTEN + 1, 30.0, look)
    measured(fakes, base, iters=1, dialect="fake")
    assert float(seen[0].min()) < 0, "normal ones come first"
    assert float(seen[-1].min()) >= low and float(seen[-1].max()) <= 3


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "0-d": (meta.tanh, (TensorType((), "float32"),), {}),
    "empty": (meta.tanh, (TensorType((0, 3), "float32"),), {}),
    "several": (meta.concat, ((TensorType((2, 3), "float32"),) * 3,), {"axis": 0}),
    "indices": (meta.take, (X, TensorType((5,), "int64")), {"axis": 0}),
    "integers": (meta.floor_divide, (TensorType((9,), "int32"),) * 2, {}),
    "bools": (meta.logical_not, (TensorType((9,), "bool"),), {}),
    "complex": (meta.exp, (TensorType((9,), "complex64"),), {}),
    "half": (meta.softmax, (TensorType((3, 9), "bfloat16"),), {}),
    "numbers": (meta.add, (X, 2.5), {}),
    "no arguments": (meta.arange, (10,), {}),
    "random": (OPERATORS["random_normal"], (TensorType((1,), "int64"), (4, 5)), {}),
    "keys": (OPERATORS["random_key"], (), {}),
    "several results": (meta.topk, (X,), {"k": 2}),
    "unknown extents": (meta.nonzero, (meta.array([1, 0, 2]),), {}),
    "written": (OPERATORS["adam"], (X, X, X, X, 1, 0.1), {}),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("how", ["graph", "eager"])
def test_any_operator_is_measured(name: str, how: str) -> None:
    function, args, kwargs = CALLS[name]
    with meta.dialect.only("torch"):
        costs = meta.measure(function, *args, how=how, iters=3, **kwargs)
    timed = [c for c in costs if c.forward is not None]
    assert [c.dialect for c in timed] == ["torch"], costs
    assert timed[0].forward is not None and timed[0].forward.count == 3
    assert 0 < timed[0].forward.p20 <= timed[0].forward.median <= timed[0].forward.p80


def test_what_needs_no_kernel_costs_nothing() -> None:
    assert meta.measure(meta.reshape, X, (4, 8)) == []
    assert meta.measure(meta.shape, X) == []
    none = meta.measure(meta.reshape, X, (4, 8))
    assert str(none) == "reshape\n    no kernel runs" and "no kernel" in none._repr_html_()


def test_costs_print_as_a_table(fakes: Fakes, double: Op) -> None:
    fakes.kernel(double, "fake_first", HANDWRITTEN, 30.0, right, build=2500.0)
    fakes.kernel(double, "fake_wrong", LIBRARY, 20.0, lambda x: x * 3)
    found = meta.measure(double, X, clock=fakes.clock)
    lines = str(found).splitlines()
    assert lines[0] == "test_double(x=float32[8, 4]) on cpu -> float32[8, 4]"
    assert lines[1].split("  ")[-1] == "workspace" and "forward us" in lines[1]
    assert lines[2].split() == [
        "fake_first",
        "30.00",
        "30.00",
        "to",
        "30.00",
        "30.00",
        "2.50",
        "0",
        "B",
    ]
    assert lines[3].strip().startswith("fake_wrong  refused: is wrong, if fake_first is right")
    assert "fake_wrong" in found._repr_html_() and "refused" in found._repr_html_()
    assert [r["dialect"] for r in found.records()] == ["fake_first", "fake_wrong"]


def test_given_values_count() -> None:
    matrix = np.array([[2.0, 1.0], [1.0, 2.0]], "float32")
    with meta.dialect.only("torch"):
        (cost,) = meta.measure(meta.linalg.cholesky, meta.array(matrix), iters=1)
        assert cost.forward is not None
        turned = meta.array(np.arange(12, dtype="float32").reshape(3, 4)).T
        (cost,) = meta.measure(meta.tanh, turned, iters=1, dialect="torch")
        assert cost.forward is not None and cost.bytes["inputs"] == 48
        with pytest.raises(IndexOutOfRange):
            meta.measure(meta.take, X, meta.array([7, 8]), axis=0)


@pytest.mark.parametrize(
    ("function", "args", "options", "error", "match"),
    [
        (lambda x: meta.tanh(x) + 1, (X,), {}, ArgumentError, "makes several calls"),
        (meta.tanh, (OPEN,), {}, ArgumentError, "extents that are numbers"),
        (meta.tanh, (X,), {"how": "fast"}, ArgumentError, "how='fast'"),
        (meta.tanh, (X,), {"budget": -1}, ArgumentError, "budget=-1"),
        (meta.tanh, (X,), {"iters": -1}, ArgumentError, "iters=-1"),
        (meta.tanh, (X,), {"dialect": "torhc"}, UnknownName, None),
        ("torch.tanh", (X,), {"dialect": "tvm"}, ArgumentError, "and the name of another"),
        (meta.matmul, (X, X), {}, TypeInferError, None),
        (3, (X,), {}, ArgumentError, "measure needs an operator"),
    ],
)
def test_what_cannot_be_measured(
    function: Any, args: Any, options: Any, error: type[Exception], match: str | None
) -> None:
    what = resolve_op(function) if isinstance(function, str) else function
    with pytest.raises(error, match=match):
        meta.measure(what, *args, **options)
